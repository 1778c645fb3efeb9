"""Reads: counts, pages, one job, causes, statistics, workers, the server. Nothing here writes."""

from __future__ import annotations

from queueops.inspector.causes import CauseInQueue, CauseSummary
from queueops.inspector.overview import Due, Minute, QueueSummary
from queueops.inspector.pages import Page, Row
from queueops.inspector.server import Server, ServerFacts
from queueops.inspector.workers import ChildSummary, Running, WorkerSummary

__all__ = [
    "CauseInQueue",
    "CauseSummary",
    "ChildSummary",
    "Due",
    "Inspector",
    "Minute",
    "Page",
    "QueueSummary",
    "Row",
    "Running",
    "ServerFacts",
    "WorkerSummary",
]


class Inspector(Server):
    """Every read of the engine: `Inspector(connection)`, or `Inspector()` for the configured server.

    Each method is a fixed number of round trips and O(what it returns); times are relative to the
    scripts' clock, Redis TIME.
    """
