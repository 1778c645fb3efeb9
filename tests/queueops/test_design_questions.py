"""docs/design-questions.md names the tests that show each answer."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_answer_names_tests_that_exist() -> None:
    sections = (ROOT / "docs" / "design-questions.md").read_text().split("\n## ")[1:]
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }

    for section in sections:
        named = re.findall(r"`(test_\w+)`", section)
        assert named, section.splitlines()[0]
        assert set(named) <= there, section.splitlines()[0]
