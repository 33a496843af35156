"""Test the flakiness of a job and times to land over time, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headgate.adapters.sql.history import SqlHistory
from headgate.testing.servers.databases import new_database
from tests.unit.adapters_sql.test_flakiness import random_histories_are_counted_right
from tests.unit.adapters_sql.test_throughput_over_time import random_throughput_is_counted_right

Check = Callable[[SqlHistory, range], Awaitable[None]]


@pytest.mark.long
@pytest.mark.parametrize("check", [random_histories_are_counted_right, random_throughput_is_counted_right])
async def test_random_histories_are_counted_right_on_a_server(postgres_server: str, check: Check) -> None:
    dburi = new_database(postgres_server).replace("://", "+psycopg://")
    history = await asyncio.to_thread(SqlHistory, dburi)
    try:
        await check(history, range(12, 20))
    finally:
        await asyncio.to_thread(history.close)
