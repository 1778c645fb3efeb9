"""docs/state-machine.md is made from MOVES; `python -m tests.queueops.test_state_docs` makes it again."""

from pathlib import Path

from queueops.states import MOVES, JobState, Move

PAGE = Path(__file__).resolve().parents[2] / "docs" / "state-machine.md"
_HEAD = """\
# States and moves

Made from `queueops/states.py`; a test compares. At every instant a job is in exactly one state, named by its
hash, and in exactly the Redis structure of that state. Each move is atomic in one script and recorded as one
event with the same verb. `manage.py doctor` checks this.

```
            enqueue(run_at)                 enqueue, fire
                 │                             │
accepted ──▶ delayed ──promote─────────────▶ ready ──claim──▶ pending ──ack──▶ done (a tombstone with a TTL)
(outbox,         ▲                             ▲               │  │  │
 database        │          retry, snooze      │ release,      │  │  └──bury──▶ dead ──requeue──▶ delayed,
 only)           └─────────────────────────────┼─rescue────────┘  │              (a person)        ready
                                               └──────────────────┘
delayed, ready, dead ──discard──▶ discarded ──restore──▶ the state it had
                                      └───────purge, prune──▶ gone
ready ──hold──▶ delayed ──lift──▶ ready     (while a hold is on its handler, its cause or a tag)
```

| verb | from | to | by |
| --- | --- | --- | --- |
"""


def _row(move: Move) -> str:
    sources = ", ".join(state.value for state in JobState if state in move.sources) or "–"
    targets = [state.value for state in JobState if state in move.targets]
    gone = ["gone"] if None in move.targets else []
    who = "a person" if move.by_person else "the engine"
    return f"| `{move.verb}` | {sources} | {', '.join([*targets, *gone])} | {who} |\n"


def page() -> str:
    return _HEAD + "".join(_row(move) for move in MOVES.values())


def test_the_page_of_states_says_what_the_table_of_moves_says() -> None:
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
