"""The schedules of `make demo`, as a site would name them in its settings."""

from typing import Any

SCHEDULES: dict[str, dict[str, Any]] = {
    "sales-report": {
        "handler": "reports.build",
        "kwargs": {"kind": "sales"},
        "cron": "*/2 * * * *",
        "queue": "reports",
        "description": "What was sold, for the screen in the office",
    },
    "stock-count": {
        "handler": "reports.build",
        "kwargs": {"kind": "stock"},
        "every": "45s",
        "queue": "reports",
        "overlap": "queue_one",
        "jitter_s": 5,
        "description": "How much is left of everything",
    },
    "nightly-tax": {
        "handler": "reports.build",
        "kwargs": {"kind": "tax"},
        "cron": "0 3 * * 1-5",
        "zone": "Europe/Berlin",
        "queue": "reports",
        "catch_up": "all",
        "description": "The tax report of each working day, none left out",
    },
}
