"""Test data of an installation of the original qdo: its tree in ZooKeeper, its status queue, its message server."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from kazoo.client import KazooClient

from headgate.base.ids import fresh
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queueing.ids import START, position_of, ticks_of, unix_text
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition
from headgate.store.memory import MemoryBackend
from headgate.testing.queues.harness import APP, KEY, harness, serving
from headgate.testing.servers.databases import ZooKeeper
from tests.waiting import until

QUEUE, OTHER = "a4bb2fb6dcda4b68aad743a4746d7f58", "958f8c0643484f13b7fb32f27a4a2a9f"
HEADGATE = str(Path(sys.executable).with_name("headgate"))
FILE = """
[qdo-worker]
job = jobs:process
wait_interval = 5
[partitions]
policy = automatic
[queuey]
connection = {url}/v1/{app}/
app_key = {key}
[zookeeper]
connection = 127.0.0.1:{port}{chroot}
party_wait = 1
"""
JOBS = """
def process(message, context):
    with open("seen", "a") as seen:
        seen.write(message["body"] + "\\n")
"""


async def begun(root: Path, url: str, port: int, chroot: str = "") -> asyncio.subprocess.Process:
    (root / "worker.conf").write_text(FILE.format(url=url, app=APP, key=KEY, port=port, chroot=chroot))
    (root / "jobs.py").write_text(JOBS)
    with open(root / "log", "ab") as log:  # noqa: ASYNC230 - a small local file
        return await asyncio.create_subprocess_exec(HEADGATE, "worker", "-c", "worker.conf", cwd=root, stderr=log)


async def seen(root: Path, count: int) -> list[str]:
    def enough() -> list[str]:
        found = (root / "seen").read_text().split() if (root / "seen").exists() else []
        return found if len(found) >= count else []

    return await until(f"{count} are seen", enough)


@pytest.mark.long
async def test_an_existing_tree_is_continued_next_to_entries_of_other_programs(
    tmp_path: Path, zookeeper_server: ZooKeeper
) -> None:
    """Write it like other programs, in a ZooKeeper that others use, too."""
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    chroot = f"/qdo-{fresh()}"
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        for name in (QUEUE, OTHER):
            await client.create(name)
            await client.post_many(name, [(f"{name[0]}{n}", 1) for n in range(3)], fresh())
        done = (await client.read(QueuePartition(QUEUE), START, 2))[1]
        zk = KazooClient(f"127.0.0.1:{zookeeper_server.port}")
        await asyncio.to_thread(zk.start)
        tree = f"{chroot}/{APP}"
        zk.create(f"{tree}/queues/{QUEUE}", f'{{"last": "{ticks_of(done.message_id)}L"}}'.encode(), makepath=True)
        zk.create(f"{tree}/queues/{OTHER}", b'{"last": ""}')
        zk.create(f"{tree}/workers/worker-", b'{"queues": []}', ephemeral=True, sequence=True, makepath=True)
        worker = await begun(tmp_path, url, zookeeper_server.port, chroot)
        assert sorted(await seen(tmp_path, 4)) == ["90", "91", "92", "a2"]
        worker.terminate()
        assert await worker.wait() == 0
        last = (await client.read(QueuePartition(QUEUE), START, 3))[2].message_id
        record = json.loads(zk.get(f"{tree}/queues/{QUEUE}")[0])
        assert (record["last"], record["id"], record["epoch"]) == (str(ticks_of(last)), last, 1)
        assert len(zk.get_children(f"{tree}/workers")) >= 1, "the old one lives"
        await asyncio.to_thread(zk.stop)
    await board.close()


@pytest.mark.long
async def test_the_status_queue_is_imported_and_never_backwards(tmp_path: Path, zookeeper_server: ZooKeeper) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    chroot = f"/qdo-{fresh()}"
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        await client.create("qdo_status", 7)
        await client.create(QUEUE, 9)
        for partition in (8, 9):
            await client.post_many(QUEUE, [(f"{partition}{n}", partition) for n in range(3)], fresh())
        at = {partition: await client.read(QueuePartition(QUEUE, partition), START, 3) for partition in (8, 9)}
        statuses = [
            {"partition": f"{QUEUE}-8", "processed": at[8][0].message_id, "last_worker": "old-1"},
            {"partition": f"{QUEUE}-9", "processed": at[9][1].message_id, "last_worker": "old-2"},
            {"partition": f"{QUEUE}-9", "processed": "", "last_worker": "old-3"},
            {"partition": f"{QUEUE}-1", "processed": "", "last_worker": "old-3"},
            {"partition": "nothing", "processed": at[8][0].message_id},
        ]
        for status, partition in zip(statuses, (1, 2, 2, 1, 7), strict=True):
            await client.post_many("qdo_status", [(json.dumps(status), partition)], fresh())
        await client.post_many("qdo_status", [("not of qdo", 3)], fresh())
        zk = KazooClient(f"127.0.0.1:{zookeeper_server.port}")
        await asyncio.to_thread(zk.start)
        in_tree = unix_text(ticks_of(at[8][1].message_id))
        zk.create(f"{chroot}/partitions/{QUEUE}-8", in_tree.encode(), makepath=True)
        zk.create(f"{chroot}/partitions/{QUEUE}-2", b"0.0")
        (tmp_path / "worker.conf").write_text(
            FILE.format(url=url, app=APP, key=KEY, port=zookeeper_server.port, chroot=chroot)
        )
        for outcome in ("taken over", "further already"):
            assert await imported(tmp_path) == [
                {"partition": f"{QUEUE}:8", "last": in_tree, "outcome": outcome},
                {"partition": f"{QUEUE}:9", "last": at[9][1].message_id, "outcome": outcome},
            ]
        worker = await begun(tmp_path, url, zookeeper_server.port, chroot)
        assert sorted(await seen(tmp_path, 2)) == ["82", "92"]
        assert {row["outcome"] for row in await imported(tmp_path)} == {"in use"}
        worker.terminate()
        assert await worker.wait() == 0
        assert sorted(await seen(tmp_path, 2)) == ["82", "92"]
        await asyncio.to_thread(zk.stop)
    await board.close()


async def imported(root: Path) -> list[dict[str, str]]:
    command = await asyncio.create_subprocess_exec(
        HEADGATE, "queue", "import", "-c", "worker.conf", "--json", cwd=root, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await command.communicate()
    assert command.returncode == 0
    return list(json.loads(out))


# --- a message server that knows nothing of ours


@dataclass
class OldServer:
    """Serve only the original calls that a worker needs, with the original answers: no streams, no lag, no keys of
    posts, `since` inclusive, the last message returned again although it is before `since`."""

    queues: dict[str, int] = field(default_factory=dict)
    messages: dict[tuple[str, int], list[dict[str, object]]] = field(default_factory=lambda: defaultdict(list))

    def post(self, queue: str, partition: int, body: str) -> str:
        id = uuid.uuid1().hex
        message = {"message_id": id, "timestamp": unix_text(ticks_of(id)), "body": body, "partition": partition}
        self.messages[queue, partition].append(message)
        return id

    async def listed(self, request: web.Request) -> web.Response:
        first = request.query.get("offset", "")
        shown = [{"queue_name": q, "partitions": n} for q, n in sorted(self.queues.items()) if q >= first]
        return web.json_response({"status": "ok", "queues": shown[: int(request.query.get("limit", "1000"))]})

    async def made(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.queues[str(form["queue_name"])] = int(str(form.get("partitions", 1)))
        return web.json_response({"status": "ok"}, status=201)

    async def read(self, request: web.Request) -> web.Response:
        queue = request.match_info["queue"]
        if queue not in self.queues:
            return self.refused(404, "queue_name")
        found = self.messages[queue, int(request.query.get("partitions", "1"))]
        since = request.query.get("since", "0")
        after = position_of(since) if len(since) == 32 else START
        fresh = [m for m in found if position_of(str(m["message_id"])) >= after] or found[-1:]
        return web.json_response({"status": "ok", "messages": fresh[: int(request.query.get("limit", "100"))]})

    async def posted(self, request: web.Request) -> web.Response:
        queue = request.match_info["queue"]
        if queue not in self.queues:
            return self.refused(404, "queue_name")
        id = self.post(queue, int(request.headers.get("X-Partition", "1")), await request.text())
        return web.json_response({"status": "ok", "messages": [{"key": id}]}, status=201)

    async def one(self, request: web.Request) -> web.Response:
        """Partitions of two digits are not understood."""
        matched = re.match(r"(?:([0-9]):)?([0-9a-f]{32})", request.match_info["ids"])
        if matched is None:
            return self.refused(400, "message_ids")
        found = self.messages[request.match_info["queue"], int(matched[1] or 1)]
        return web.json_response({"status": "ok", "messages": [m for m in found if m["message_id"] == matched[2]]})

    def refused(self, status: int, name: str) -> web.Response:
        return web.json_response({"status": "error", "error_msg": {name: "wrong"}}, status=status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app, base = web.Application(), f"/v1/{APP}"
        app.router.add_get(base, self.listed)
        app.router.add_post(base, self.made)
        app.router.add_get(f"{base}/{{queue}}", self.read)
        app.router.add_post(f"{base}/{{queue}}", self.posted)
        app.router.add_get(f"{base}/{{queue}}/{{ids}}", self.one)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("partition", [2, 12])
async def test_messages_of_an_old_server_are_processed_and_given_up(partition: int) -> None:
    old, seen = OldServer({QUEUE: partition}), list[str]()
    for n in range(3):
        old.post(QUEUE, partition if n == 1 else 1, f"m{n}")

    async def job(message: object, context: object) -> None:
        seen.append(message["body"])  # type: ignore[index]  # as old jobs do
        if seen[-1] == "m1":
            raise ValueError("never")

    async with old.serving() as url, harness(url, MemoryBackend()) as hands:
        hands.start(job)
        await hands.until("all have run", lambda: len(seen) >= 5)
        old.post(QUEUE, 1, "later")
        await hands.until("what came later, too", lambda: "later" in seen)
        await hands.until("one is given up", lambda: old.messages[DEAD_LETTERS, 1])
    assert sorted(seen) == ["later", "m0", "m1", "m1", "m1", "m2"]
    assert str(old.messages[DEAD_LETTERS, 1][0]["body"]).endswith("\nm1")
