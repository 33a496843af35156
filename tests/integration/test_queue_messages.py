"""Test the storage of messages on SQLite and on a real PostgreSQL, with one suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.base.tasks import end
from headgate.queue.messages import board as boards
from headgate.queue.messages import queues
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.database import Database
from headgate.queue.messages.posts import Overloaded
from headgate.queue.messages.records import (
    READ_MAX_CHARS,
    InvalidPost,
    KeyReused,
    MessageDraft,
    NoQueue,
    QueueRecord,
)
from headgate.queue.messages.storage import backlog
from headgate.queueing.ids import (
    START,
    TICKS_A_SECOND,
    TICKS_MAX,
    Position,
    make_id,
    position_of,
    ticks_of,
    ticks_of_unix_ns,
)
from headgate.queueing.partitions import QueuePartition
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.databases import new_database

APP = "sync"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'messages.sqlite'}"
    return new_database(request.getfixturevalue("postgres_server"))


@pytest.fixture
async def board(url: str) -> AsyncIterator[MessageBoard]:
    opened = await MessageBoard.open(url)
    yield opened
    await opened.close()


async def queue(board: MessageBoard, name: str = "q", partitions: int = 1) -> QueueRecord:
    await board.create(APP, QueueRecord(0, name, partitions, "user", "strong", "", 0))
    return await board.queue(APP, name)


async def bodies(board: MessageBoard, of: QueueRecord, partition: int = 1) -> list[str]:
    return [one.body for one in await board.read("any", of, partition, START, limit=1000)]


async def test_messages_come_back_in_the_order_they_were_posted(board: MessageBoard) -> None:
    q = await queue(board)
    for n in range(3):
        await board.post(APP, "q", [MessageDraft(f"{n}a"), MessageDraft(f"{n}b")])
    assert await bodies(board, q) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    first = (await board.read("any", q, 1, START, limit=1))[0]
    since = await board.read("any", q, 1, position_of(first.message_id), limit=2)
    assert [one.body for one in since] == ["0a", "0b"], "since is inclusive"
    down = await board.read("any", q, 1, position_of(since[1].message_id), limit=9, descending=True)
    assert [one.body for one in down] == ["0b", "0a"]


async def test_ids_grow_even_when_the_clock_steps_back(board: MessageBoard) -> None:
    await queue(board)
    now_ns = 1_700_000_000 * 10**9
    ids = []
    for step in (0, -3600, -7200, 1, 1):
        board.now_ns = lambda step=step: now_ns + step * 10**9
        posted, _ = await board.post(APP, "q", [MessageDraft("x", partition=1)] * 3)
        ids += [one.key for one in posted]
    assert ids == sorted(ids, key=position_of)
    assert len(set(map(ticks_of, ids))) == len(ids)


async def test_concurrent_posts_get_distinct_ids(board: MessageBoard) -> None:
    q = await queue(board, partitions=3)
    await asyncio.gather(*(board.post(APP, "q", [MessageDraft(str(n))]) for n in range(300)))
    found = [await bodies(board, q, p) for p in (1, 2, 3)]
    assert sorted(int(body) for of in found for body in of) == list(range(300))
    assert all(len(of) > 50 for of in found), "spread evenly"


@pytest.mark.long
async def test_two_processes_on_one_database_keep_the_order_of_ids(url: str, board: MessageBoard) -> None:
    q = await queue(board)
    other = await MessageBoard.open(url)
    try:
        seen: list[str] = []

        async def read() -> None:
            """Read like a worker, from its position. Nothing may appear behind it."""
            while len(seen) < 200:
                at = position_of(seen[-1]) if seen else START
                page = [one.message_id for one in await board.read("any", q, 1, at, limit=50)]
                seen.extend(id for id in page if id not in seen[-1:])

        async def post(by: MessageBoard) -> None:
            for _ in range(100):
                await by.post(APP, "q", [MessageDraft("x")])

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(read(), post(board), post(other))
        ids_read = [one.message_id for one in await board.read("any", q, 1, START, limit=1000)]
        assert seen == ids_read and len(ids_read) == 200
    finally:
        await other.close()


async def test_a_post_in_one_process_wakes_the_others(url: str, board: MessageBoard) -> None:
    if not url.startswith("postgresql"):
        return
    await queue(board)
    other = await MessageBoard.open(url)
    listening = asyncio.ensure_future(other.upkeep())
    try:
        with other.signal.listen(APP) as listener:
            async with asyncio.timeout(DEADLINE_S):
                await listener.wait()  # it hears
                await board.post(APP, "q", [MessageDraft("x")])
                partitions: set[QueuePartition] = set()
                while QueuePartition("q") not in partitions:
                    partitions, _ = await listener.wait()
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await other.close()


async def test_expired_messages_are_not_seen_and_are_purged_in_pieces(
    board: MessageBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "PURGE_MAX", 7)
    q = await queue(board)
    await board.post(APP, "q", [MessageDraft("short", ttl_s=1)] * 20 + [MessageDraft("long", ttl_s=100)])
    now_ns = board.now_ns()
    board.now_ns = lambda: now_ns + 2 * 10**9
    assert await bodies(board, q) == ["long"]
    assert await board._purge() == 20
    assert await board._purge() == 0


async def test_a_removed_queue_disappears_immediately_and_its_messages_soon(board: MessageBoard) -> None:
    await queue(board)
    await board.post(APP, "q", [MessageDraft("x")] * 5)
    await board.remove(APP, "q")
    with pytest.raises(NoQueue):
        await board.post(APP, "q", [MessageDraft("x")])
    again = await queue(board)
    assert await bodies(board, again) == []
    assert await board._purge() == 5


async def test_the_keys_of_a_removed_queue_go_in_pieces_like_its_messages(
    board: MessageBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "PURGE_MAX", 7)
    await queue(board)
    for number in range(20):
        await board.post(APP, "q", [MessageDraft("x")], key=str(number))
    await board.remove(APP, "q")
    again = await queue(board)
    _, replayed = await board.post(APP, "q", [MessageDraft("x")], key="1")
    assert not replayed
    assert await board._purge() == 20 + 20
    assert await bodies(board, again) == ["x"] and await board._purge() == 0


async def test_a_queue_that_is_created_again_continues_after_the_ids_of_the_old_one(board: MessageBoard) -> None:
    await queue(board)
    await board.post(APP, "q", [MessageDraft("x")])
    future = make_id(ticks_of_unix_ns(board.now_ns()) + 3_600 * TICKS_A_SECOND, 0, 1)
    await board.put(APP, "q", [(1, future)], "an hour ahead", 60)
    await board.remove(APP, "q")
    await queue(board)
    (posted,), _ = await board.post(APP, "q", [MessageDraft("y")])
    assert position_of(posted.key) > position_of(future), "who has read as far as that would miss it"


async def test_a_page_ends_after_a_limited_amount_of_text_and_the_next_continues_there(board: MessageBoard) -> None:
    large = [f"{n}" + "x" * (READ_MAX_CHARS // 20) for n in range(50)]
    of, found, pages, at = await queue(board), list[str](), list[int](), START
    await board.post(APP, "q", [MessageDraft(body) for body in large])
    while page := [one for one in await board.read("any", of, 1, at, limit=100) if position_of(one.message_id) != at]:
        pages.append(len(page))
        found += [one.body for one in page]
        at = position_of(page[-1].message_id)
    assert found == large and max(pages) <= 21
    down = await board.read("any", of, 1, Position(TICKS_MAX), limit=3, descending=True)
    assert [one.body[:2] for one in down] == ["49", "48", "47"]


async def test_the_same_key_posts_once(board: MessageBoard) -> None:
    q = await queue(board)
    first, replayed = await board.post(APP, "q", [MessageDraft("x")], key="k1")
    assert not replayed
    assert await board.post(APP, "q", [MessageDraft("x")], key="k1") == (first, True)
    with pytest.raises(KeyReused):
        await board.post(APP, "q", [MessageDraft("other")], key="k1")
    at_once = await asyncio.gather(*(board.post(APP, "q", [MessageDraft("y")], key="k2") for _ in range(5)))
    assert len({posted[0].key for posted, _ in at_once}) == 1
    assert await bodies(board, q) == ["x", "y"]


async def test_one_wrong_partition_refuses_the_batch_and_stores_nothing(board: MessageBoard) -> None:
    q = await queue(board)
    with pytest.raises(InvalidPost) as refused:
        await board.post(APP, "q", [MessageDraft("a"), MessageDraft("b", partition=4), MessageDraft("c")])
    assert list(refused.value.fields) == ["1.partition"]
    assert await bodies(board, q) == []


async def test_partitions_grow_and_never_shrink(board: MessageBoard) -> None:
    await queue(board, partitions=2)
    grown = await queue(board, partitions=5)
    await board.post(APP, "q", [MessageDraft("x", partition=5)])
    assert await bodies(board, grown, 5) == ["x"]
    with pytest.raises(InvalidPost):
        await queue(board, partitions=4)


async def test_messages_are_put_got_and_deleted_by_id(board: MessageBoard) -> None:
    q = await queue(board, partitions=2)
    old = make_id(ticks_of_unix_ns(10**18), 0, 7)
    await board.put(APP, "q", [(2, old)], "first", 60)
    await board.put(APP, "q", [(2, old)], "second", 60)
    assert [one.body for one in await board.get("any", q, [(2, old), (1, old)])] == ["second"]
    await board.delete(APP, "q", [(2, old), (1, old)])
    assert await board.get("any", q, [(2, old)]) == []
    with pytest.raises(InvalidPost, match="future"):
        await board.put(APP, "q", [(1, make_id((1 << 60) - 1, 0, 0))], "x", 60)
    with pytest.raises(InvalidPost, match="partition"):
        await board.put(APP, "q", [(3, old)], "x", 60)


async def test_a_posted_message_comes_after_messages_that_were_put(board: MessageBoard) -> None:
    q = await queue(board)
    soon = make_id(ticks_of_unix_ns(board.now_ns() + 3600 * 10**9), 0, 7)
    await board.put(APP, "q", [(1, soon)], "put", 60)
    await board.post(APP, "q", [MessageDraft("posted")])
    assert await bodies(board, q) == ["put", "posted"]


async def test_the_backlog_counts_messages_after_a_position(board: MessageBoard) -> None:
    q = await queue(board)
    posted, _ = await board.post(APP, "q", [MessageDraft(str(n)) for n in range(10)])
    behind = await board.look(
        "any", lambda database, now_ms: backlog(database, q.id, 1, position_of(posted[3].key), now_ms)
    )
    assert (behind.waiting, behind.newest, behind.oldest_waiting) == (6, posted[9].key, posted[4].timestamp)
    nothing = await board.look(
        "any", lambda database, now_ms: backlog(database, q.id, 1, position_of(posted[9].key), now_ms)
    )
    assert (nothing.waiting, nothing.oldest_waiting) == (0, "")


async def test_acknowledged_messages_exist_after_a_restart(url: str) -> None:
    one = await MessageBoard.open(url)
    await queue(one)
    posted, _ = await one.post(APP, "q", [MessageDraft("kept")])
    await one.close()
    two = await MessageBoard.open(url)
    try:
        two.now_ns = lambda: 0
        later, _ = await two.post(APP, "q", [MessageDraft("later")])
        assert position_of(later[0].key) > position_of(posted[0].key)
        assert await bodies(two, await two.queue(APP, "q")) == ["kept", "later"]
    finally:
        await two.close()


async def test_a_server_with_too_many_waiting_writes_continues_its_upkeep(
    board: MessageBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()

    async def full() -> int:
        refused.set()
        raise Overloaded("10000 writes are already waiting")

    monkeypatch.setattr(board, "_purge", full)
    upkeep = asyncio.ensure_future(board.upkeep())
    async with asyncio.timeout(DEADLINE_S):
        await refused.wait()
        # The purge loop has received the refusal after all other ready callbacks have run.
        await asyncio.wait([upkeep], timeout=0.05)
    assert not upkeep.done()
    await end(upkeep)


def _constraint(database: Database) -> None:
    database.execute("insert into aged (queue, age_max_s) values (1, null)")


def _nul(database: Database) -> None:
    queues.find(database, APP, "a\0b")


def _half(database: Database) -> None:
    database.execute("update queue set kind = 'public'")
    queues.find(database, APP, "\ud800")


def _fault(database: Database) -> None:
    database.execute("update queue set kind = 'public'")
    _ = list[str]()[0]


@pytest.mark.parametrize("fails", [_constraint, _nul, _half, _fault])
async def test_a_write_that_fails_by_itself_fails_alone(board: MessageBoard, fails: Callable[[Database], None]) -> None:
    await queue(board)
    async with asyncio.timeout(DEADLINE_S):
        before, failed, after = await asyncio.gather(
            board.post(APP, "q", [MessageDraft("before")]),
            board.change("other", lambda database, _: fails(database)),
            board.post(APP, "q", [MessageDraft("after")]),
            return_exceptions=True,
        )
    assert isinstance(failed, Exception)
    assert not isinstance(before, BaseException) and not isinstance(after, BaseException), (before, after)
    q = await board.queue(APP, "q")
    assert await bodies(board, q) == ["before", "after"] and q.kind == "user"


async def test_few_transactions_find_the_write_that_fails(board: MessageBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    await queue(board)
    groups, together = list[int](), board._together

    def counted(works: Sequence[Any]) -> list[Any]:
        groups.append(len(works))
        return together(works)

    monkeypatch.setattr(board, "_together", counted)
    works: list[Any] = [lambda database: database.execute("select 1")] * 64
    works[21] = _constraint
    answers = await asyncio.to_thread(board._answers, works)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [21]
    assert len(groups) == 1 + 2 * 6, "halves of halves, down to the one"


async def test_a_post_to_a_queue_that_is_just_removed_is_answered(board: MessageBoard) -> None:
    q = await queue(board)
    await queue(board, "other")
    # Another server leaves this state between finding the queue and reserving ids.
    await board._write(lambda database: database.execute("delete from lane where queue = ?", (q.id,)))
    async with asyncio.timeout(DEADLINE_S):
        gone, posted = await asyncio.gather(
            board.post(APP, "q", [MessageDraft("x")]),
            board.post(APP, "other", [MessageDraft("y")]),
            return_exceptions=True,
        )
    assert isinstance(gone, NoQueue) and not isinstance(posted, BaseException)
    assert await bodies(board, await board.queue(APP, "other")) == ["y"]


async def test_a_post_that_is_refused_does_not_use_its_key_up(board: MessageBoard) -> None:
    q = await queue(board)
    drafts = MessageDraft("x", partition=2), MessageDraft("x", partition=1), MessageDraft("x", partition=1)
    refused, posted, again = await asyncio.gather(
        *(board.post(APP, "q", [draft], key="k") for draft in drafts), return_exceptions=True
    )
    assert isinstance(refused, InvalidPost)
    assert not isinstance(posted, BaseException) and not isinstance(again, BaseException), (posted, again)
    assert (posted[1], again) == (False, (posted[0], True))
    assert await bodies(board, q) == ["x"]
