"""Traces, where the settings want them."""

from __future__ import annotations

from contextlib import AsyncExitStack

from headgate.base.extras import needing
from headgate.cli.settings import Settings
from headgate.ports.observer import Observer
from headgate.services.context import Context


def traces(settings: Settings, context: Context, stack: AsyncExitStack) -> Observer:
    """Return who sends them.  Raise MissingPackage."""
    with needing("[tracing]", "tracing"):
        from headgate.adapters.metrics.traces import Traces
    found = Traces.to(settings.get("tracing", "endpoint"), context.hostname)
    stack.callback(found.close)
    return found
