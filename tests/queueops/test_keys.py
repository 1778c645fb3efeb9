"""Every Redis key, spelled in one module; and what may be a queue's name or a job's id."""

from __future__ import annotations

from pathlib import Path

import pytest

import queueops
from queueops import keys
from queueops.states import JobState, Lane

ROOT = Path(queueops.__file__).parent.parent
BAD_NAMES = ["", " ", "-a", ".a", "_a", "a b", "a/b", "a:b", "a{b}", "ä"]
BAD_NAMES += ["a\n", "a\0", "a" * 65, "a\N{ARABIC-INDIC DIGIT ONE}"]
BAD_IDS = ["", " ", "-a", ".a", "a b", "a/b", "a{b", "ü"]
BAD_IDS += ["a\n", "\nx", "a\0", "a" * 129, "1\N{FULLWIDTH DIGIT TWO}"]


@pytest.mark.parametrize("name", ["a", "A", "0", "mail", "a.b-c_d", "a" * 64])
def test_a_legal_queue_name_is_returned(name: str) -> None:
    assert keys.check_queue(name) == name


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_an_illegal_queue_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(ValueError, match="is not allowed: 1 to 64 of"):
        keys.check_queue(name)


@pytest.mark.parametrize("job_id", ["a", "0", "order:7", "a@b", "a._:@-Z", "a" * 128])
def test_a_legal_job_id_is_returned(job_id: str) -> None:
    assert keys.check_job_id(job_id) == job_id


@pytest.mark.parametrize("job_id", BAD_IDS, ids=ascii)
def test_an_illegal_job_id_is_refused_and_shown(job_id: str) -> None:
    with pytest.raises(ValueError, match=r"job_id .* is not allowed: 1 to 128 of"):
        keys.check_job_id(job_id)


@pytest.mark.parametrize("value", [None, 7, b"a", ["a"], True])
def test_what_is_no_text_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="queue must be a string"):
        keys.check_queue(value)
    with pytest.raises(TypeError, match="job_id must be a string"):
        keys.check_job_id(value)


def test_a_long_bad_name_is_shown_cut() -> None:
    with pytest.raises(ValueError, match=r"^queue name '/{77}\.\.\.' is not") as refused:
        keys.check_queue("/" * 1_000_000)
    assert len(str(refused.value)) < 250


def test_the_keys_are_those_of_the_design() -> None:
    assert keys.job("mail", "a") == "queueops:{mail}:job:a"
    assert keys.ready("mail", Lane.HIGH) == "queueops:{mail}:ready:high"
    assert keys.jobs_in("mail", JobState.DELAYED) == "queueops:{mail}:delayed"
    assert keys.dead_of_cause("mail", "c") == "queueops:{mail}:dead:c"
    assert keys.cause("mail", "c") == "queueops:{mail}:cause:c"
    assert keys.child("mail", "h:1:a/1") == "queueops:{mail}:child:h:1:a/1"
    assert keys.stats("mail", 5) == "queueops:{mail}:stats:5"
    assert keys.unique("mail", "d") == "queueops:{mail}:unique:d"
    assert keys.schedule("mail", "k") == "queueops:{mail}:schedule:k"
    assert keys.lease("mirror") == "queueops:lease:mirror"
    assert {keys.QUEUES, keys.WORKERS, keys.EPOCH} == {
        "queueops:queues",
        "queueops:workers",
        "queueops:epoch",
    }


@pytest.mark.parametrize("state", [JobState.READY, JobState.DONE])
def test_ready_and_done_jobs_are_in_no_sorted_set(state: JobState) -> None:
    with pytest.raises(ValueError, match="in no sorted set"):
        keys.jobs_in("mail", state)


def test_all_keys_of_a_queue_share_its_hash_tag() -> None:
    assert all(keys.queue_key("mail", name).startswith("queueops:{mail}:") for name in keys.SUFFIXES)


def test_no_two_structures_have_one_key() -> None:
    assert len(set(keys.SUFFIXES.values())) == len(keys.SUFFIXES)


def test_no_other_module_spells_a_key() -> None:
    spelling = [
        str(path.relative_to(ROOT))
        for folder in ("queueops", "dashboard")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "queueops" / "keys.py"
        and any(quote + "queueops:" in path.read_text() for quote in "\"'")
    ]

    assert spelling == []
