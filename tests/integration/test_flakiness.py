"""How flaky a job is over time, on a real PostgreSQL."""

from __future__ import annotations

import asyncio

from headgate.adapters.sql.history import SqlHistory
from headgate.testing.queues.postgres import new_database
from tests.unit.adapters_sql.test_flakiness import random_histories_are_counted_right


async def test_random_histories_are_counted_right_on_a_server(postgres_server: str) -> None:
    dburi = new_database(postgres_server).replace("://", "+psycopg://")
    history = await asyncio.to_thread(SqlHistory, dburi)
    try:
        await random_histories_are_counted_right(history, range(12, 20))
    finally:
        await asyncio.to_thread(history.close)
