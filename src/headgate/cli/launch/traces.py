"""Traces, where the settings want them."""

from __future__ import annotations

from contextlib import AsyncExitStack

from headgate.base.errors import UserError
from headgate.cli.settings import Settings
from headgate.ports.observer import Observer
from headgate.services.context import Context


def traces(settings: Settings, context: Context, stack: AsyncExitStack) -> Observer:
    """Return who sends them.  Raise UserError."""
    try:
        from headgate.adapters.metrics.traces import Traces
    except ImportError as error:
        raise UserError(f"[tracing] needs pip install 'headgate[tracing]': {error}") from error
    found = Traces.to(settings.get("tracing", "endpoint"), context.hostname)
    stack.callback(found.close)
    return found
