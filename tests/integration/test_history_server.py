"""Test the history on a server that is sometimes away."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.state.returns import ReturnedArtifact
from headgate.map.records import FinishedBuild, HandAction
from headgate.ports.history import HistoryQuery, HistoryRefused, HistoryUnavailable
from headgate.testing.servers.databases import new_database
from headgate.testing.servers.faults import Proxy
from tests.unit.adapters_sql.test_attempts import OLD, records_of_an_earlier_version_are_there
from tests.unit.adapters_sql.test_history import ENDED


async def test_an_unavailable_server_is_waited_for_even_at_the_start(
    postgres_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = new_database(postgres_server)
    port = int(database.rpartition(":")[2].partition("/")[0])
    proxy = Proxy("127.0.0.1", port)
    await proxy.start()
    proxy.refuse()
    dburi = database.replace(f":{port}/", f":{proxy.port}/").replace("://headgate@", "+psycopg://headgate:secret@")
    history = await asyncio.to_thread(SqlHistory, dburi)
    assert "is unavailable; waiting for it" in caplog.text and "secret" not in caplog.text
    with pytest.raises(HistoryUnavailable):
        await history.record(ENDED)
    proxy.restore()
    await history.record(ENDED)
    proxy.cut()
    await history.record(ENDED)
    assert [build.uuid for build in await history.builds("acme", HistoryQuery())] == ["b1"]
    await asyncio.to_thread(history.close)
    await proxy.stop()


ODD = {"NUL": "a\0b", "half a character": "a\ud800b", "long": "a" * 1_000}


@pytest.fixture(scope="module")
def server(database: str) -> str:
    return database.replace("://", "+psycopg://")


@pytest.mark.parametrize("kind", ODD)
async def test_texts_that_a_database_refuses_are_stored_in_a_form_that_it_accepts(server: str, kind: str) -> None:
    odd, history = ODD[kind], await asyncio.to_thread(SqlHistory, server)
    shown = {"NUL": "a\ufffdb", "half a character": "a\ufffdb", "long": "a" * 254 + "…"}[kind]
    buildset, build = f"s-{kind}", f"b-{kind}"
    finished = FinishedBuild(
        uuid=build,
        job_name=odd,
        result="FAILURE",
        error=odd,
        log_url=odd,
        nodeset=odd,
        artifacts=(ReturnedArtifact(odd, odd, {odd: [odd]}),),
        provides=(odd,),
    )
    change = replace(ENDED.change, topic=odd, branch=odd, ref=odd, url=odd)
    await history.record(replace(ENDED, buildset=buildset, message=odd, change=change, builds=(finished,)))
    await history.keep(
        HandAction(id=kind, verb="v", who=odd, origin=odd, at_ms=1, tenant="acme", subject=odd, details={odd: odd})
    )
    found = await history.buildset("acme", buildset)
    assert found is not None and [one.job_name for one in found.builds or ()] == [shown]
    assert len(found.message) == len(odd), "columns of any length keep all"
    same = await history.builds("acme", HistoryQuery({"job_name": (shown,)}))
    assert build in [one.uuid for one in same]
    assert await history.builds("acme", HistoryQuery({"job_name": (odd,)})) == (same if kind != "long" else [])
    await asyncio.to_thread(history.close)


async def test_a_row_that_the_database_refuses_does_not_count_as_an_unavailable_database(server: str) -> None:
    history = await asyncio.to_thread(SqlHistory, server)
    with pytest.raises(HistoryRefused):
        await history.record(replace(ENDED, ended_ms=1 << 80))
    await history.record(ENDED)
    await asyncio.to_thread(history.close)


async def test_several_processes_upgrade_a_database_of_the_last_version_concurrently(server: str) -> None:
    engine = sa.create_engine(server)
    with engine.begin() as connection:
        for table in ("build", "buildset", "hand_action", "history_version"):
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        for statement in OLD.split(";\n"):
            if statement.strip():
                connection.execute(sa.text(statement))
    engine.dispose()
    opened = await asyncio.gather(*(asyncio.to_thread(SqlHistory, server) for _ in range(3)))
    await records_of_an_earlier_version_are_there(opened[0])
    for history in opened:
        await asyncio.to_thread(history.close)
