"""Test how much one transaction does for one application, which the writes of all others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.queue.messages import bounds, later, queues, schedules
from headgate.queue.messages.bounds import ApplicationLimits
from headgate.queue.messages.records import MessageDraft, QueueRecord
from headgate.testing.queues.harness import APP, OTHER_APP
from tests.hostile.test_queue_limits import fetched, leased, posted
from tests.hostile.test_queue_limits import later as pass_time
from tests.hostile.test_queue_sizes import LARGE, MINE, Asking, asking


async def found(ask: Asking, sql: str) -> list[Any]:
    return await ask.board.look("", lambda database, _: database.execute(sql))


async def deliver(ask: Asking) -> list[str]:
    """Deliver what is due in one transaction; return the applications."""
    delivered = await ask.board.change("", lambda database, now: later.deliver(database, now.now_ns, now.node))
    return [app for app, _ in delivered]


async def test_a_request_for_a_lease_reads_no_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a lease looks at every partition, each second while it waits, in the transaction of the writer."""
    async with asking(tmp_path) as ask:
        await posted(ask, LARGE)
        lease = await leased(ask)
        await ask("POST", lease, json={"done": await fetched(ask, lease)}, headers=MINE)
        await ask("DELETE", lease, headers=MINE)
        bodies, real = list[int](), ask.board._writer.execute

        def counted(*of: Any) -> Any:
            rows = real(*of)
            bodies.extend(len(value) for row in rows for value in row if isinstance(value, str))
            return rows

        monkeypatch.setattr(ask.board._writer, "execute", counted)
        _, answer = await ask("POST", "q/lease", json={"group": "g", "partition": 1}, headers=MINE)
        assert answer["lease"] is None and max(bodies) < 1_000
        await posted(ask, LARGE)
        assert await leased(ask) and max(bodies) < 1_000


async def test_a_lowered_limit_drops_so_many_messages_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were so many for each partition, and one batch may be for two hundred of them."""
    monkeypatch.setattr(bounds, "DROP_MAX", 7)
    async with asking(tmp_path) as ask:
        for partition in range(1, 7):
            await posted(ask, *["x"] * 5, partition=partition)
        await ask("PUT", "q", data={"messages_max": "1", "full": "drop"}, headers=MINE)
        batch = {"messages": [{"body": "y", "partition": partition} for partition in range(1, 7)]}
        for left in (30 + 6 - 7, 30 + 12 - 14, 30 + 18 - 21):
            assert (await ask("POST", "q", json=batch, headers=MINE))[0] == 201
            assert (await found(ask, "select count(*) from message"))[0][0] == left


async def test_withdrawing_a_message_does_not_search_all_delayed_ones(tmp_path: Path) -> None:
    async with asking(tmp_path) as ask:
        ids = await posted(ask, *["x"] * 5_000, delay=3600)
        steps = list[int]()
        ask.board._writer._connection.set_progress_handler(lambda: bool(steps.append(1)), 100)  # type: ignore[attr-defined]
        _, answer = await ask("DELETE", f"q/delayed/1:{ids[0]}", headers=MINE)
        assert answer["withdrawn"] == 1 and len(steps) < 50, "each step is a hundred instructions"


async def test_delayed_messages_of_one_application_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more partitions than a transaction handles, and more characters."""
    monkeypatch.setattr(later, "PARTITIONS_AT_ONCE", 3)
    monkeypatch.setattr(later, "TOGETHER_MAX_CHARS", 2_000)
    async with asking(tmp_path) as ask:
        await ask.board.create(OTHER_APP, QueueRecord(0, "z", 1, "user", "strong", "", 0))
        for partition in range(1, 7):
            await posted(ask, *["x" * 900] * 5, partition=partition, delay=1)
        await ask.board.post(OTHER_APP, "z", [MessageDraft("honest", delay_ms=2_000)])
        pass_time(ask, 10)
        assert sorted(await deliver(ask))[0] == OTHER_APP
        while await deliver(ask):
            pass
        assert await found(ask, "select count(*) from message") == [(31,)]


async def test_schedules_of_one_application_delay_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are due at the same minute, and a transaction posts for a few of them."""
    monkeypatch.setattr(schedules, "TOGETHER_MAX", 3)
    monkeypatch.setattr(schedules, "ALL_MAX", 10)
    async with asking(tmp_path) as ask:
        await ask.board.create(OTHER_APP, QueueRecord(0, "z", 1, "user", "strong", "", 0))
        often = {"cron": "* * * * *", "body": "x"}
        statuses = [(await ask("PUT", f"q/schedules/s{n}", json=often, headers=MINE))[0] for n in range(12)]
        assert statuses == [200] * 10 + [400] * 2
        honest = schedules.MessageSchedule("z", "* * * * *", "x")
        await ask.board.change(
            OTHER_APP, lambda database, now: schedules.put(database, OTHER_APP, "z", honest, now.now_ms)
        )
        pass_time(ask, 61)
        posts = await ask.board.change("", lambda database, now: schedules.post_due(database, now))
        assert sorted(app for app, _ in posts) == [OTHER_APP, APP, APP]


async def test_removed_queues_do_not_fill_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages are deleted more slowly than others are posted, and the names of queues were remembered for a
    month."""
    monkeypatch.setattr(queues, "RETIRED_MAX", 3)
    async with asking(tmp_path, ApplicationLimits(bytes_max=20_000)) as ask:
        statuses = list[int]()
        for n in range(6):
            pass_time(ask, n)
            assert (await ask("POST", "", data={"queue_name": f"r{n}"}, headers=MINE))[0] == 201
            statuses.append((await ask("POST", f"r{n}", data="x" * 15_000, headers=MINE))[0])
            assert (await ask("DELETE", f"r{n}", headers=MINE))[0] == 200
        assert statuses == [201] * 2 + [429] * 4
        assert await found(ask, "select count(*) from retired") == [(3,)]
        await ask.board._purge()
        pass_time(ask, 10)
        assert (await ask("POST", "q", data="x" * 15_000, headers=MINE))[0] == 201


async def test_what_is_left_of_many_removed_queues_is_deleted_together(tmp_path: Path) -> None:
    """It was ten queues in half a minute."""
    async with asking(tmp_path) as ask:
        for n in range(25):
            await ask("POST", "", data={"queue_name": f"r{n}"}, headers=MINE)
            await ask("POST", f"r{n}", data="x", headers=MINE)
            await ask("DELETE", f"r{n}", headers=MINE)
        await ask.board._purge()
        left = "select count(*) from message union all select count(*) from doomed"
        assert await found(ask, left) == [(0,), (0,)]
