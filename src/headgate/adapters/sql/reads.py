"""Queries of the database, each of which is cut off when it takes too long, since others wait for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from headgate.ports.history import HistoryUnavailable

READ_MAX_S = 30.0
PROGRESS_STEPS = 100_000
"""Steps of SQLite between two checks of the time limit."""
NEVER = float("inf")


class BoundedReads:
    """Ask one question at a time; concurrent writes are never cut off."""

    def __init__(self) -> None:
        self._until_s = NEVER

    def watch(self, connection: sa.Connection) -> None:
        """Make a new connection to SQLite check the time limit; servers have limits of their own."""
        driver: Any = connection.connection.driver_connection
        # SQLite ends the statement with "interrupted" once the handler returns True; it has no time limit of its own.
        driver.set_progress_handler(lambda: time.monotonic() > self._until_s, PROGRESS_STEPS)

    def rows(self, connection: sa.Connection, query: sa.Select[Any]) -> list[Mapping[str, Any]]:  # of several shapes
        """Return the rows. Raise HistoryUnavailable for a question that takes too long."""
        self._until_s = time.monotonic() + READ_MAX_S
        if connection.dialect.name == "postgresql":
            # LOCAL: for this transaction, so that writes have no limit.
            connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(READ_MAX_S * 1_000)}"))
        try:
            return [dict(row) for row in connection.execute(query).mappings()]
        except sa.exc.OperationalError as error:
            # Both databases raise the same kind of error for a cut and for a lost connection.
            if time.monotonic() <= self._until_s:
                raise
            raise HistoryUnavailable(f"this took longer than {READ_MAX_S:.0f} s; ask for less") from error
        finally:
            self._until_s = NEVER
