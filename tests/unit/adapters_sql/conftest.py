"""Provide a history in a file, and the query plans of its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from headgate.adapters.sql.history import SqlHistory


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqlHistory]:
    opened = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}")
    yield opened
    opened.close()


@pytest.fixture
def planned(history: SqlHistory, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return, for each later query of the history, the lines of its plan that read builds or buildsets."""
    plans: list[list[str]] = []
    real = history._reads.rows

    def explained(connection: sa.Connection, query: sa.Select[tuple[object, ...]]) -> object:
        text = query.compile(connection, compile_kwargs={"literal_binds": True})
        plan = [row[3] for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {text}"))]
        plans.append([line for line in plan if "buildset" in line or "build " in line])
        return real(connection, query)

    monkeypatch.setattr(history._reads, "rows", explained)
    return plans
