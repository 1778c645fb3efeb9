"""The drill's handler. Loaded by the drill's own workers only, through their settings."""

from __future__ import annotations

from queueops.drill.charging import NAME, charge
from queueops.handlers import Handler, register_handler

register_handler(Handler(NAME, charge))
