"""The history on a server that is not always there."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.sql.history import SqlHistory
from headgate.ports.history import HistoryUnavailable, Question
from headgate.testing.queues.postgres import postgres
from headgate.testing.servers.proxy import Proxy
from tests.unit.adapters_sql.test_history import ENDED


async def test_a_server_that_is_away_is_waited_for_also_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with postgres() as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        proxy = Proxy("127.0.0.1", port)
        await proxy.start()
        proxy.refuse()
        dburi = url.replace(str(port), str(proxy.port)).replace("://headgate@", "+psycopg://headgate:secret@")
        history = await asyncio.to_thread(SqlHistory, dburi)
        assert "cannot be used, and is waited for" in caplog.text and "secret" not in caplog.text
        with pytest.raises(HistoryUnavailable):
            await history.record(ENDED)
        proxy.restore()
        await history.record(ENDED)
        proxy.cut()
        await history.record(ENDED)
        assert [build.uuid for build in await history.builds("acme", Question())] == ["b1"]
        await asyncio.to_thread(history.close)
        await proxy.stop()
