"""Test many simultaneous viewers: each sees the current state, whenever it connects and however fast it reads, and
the gate knows none."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from msgspec.structs import replace

from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.gate.state.model import State
from headgate.map.forms import PIPELINE, QUEUE
from headgate.testing.clock import DEADLINE_S
from headgate.web.access import Access
from headgate.web.app import create_app
from headgate.web.server import serve
from headgate.web.shots import Estimates
from headgate.web.viewers.frames import Scene
from headgate.web.viewers.porter import Porter
from tests.e2e.crowd import NOW_MS, crowd, crowded
from tests.integration.conftest import TENANTS
from tests.waiting import until

from .test_tls import certificate

STATUS = "/api/tenant/example/status"
LARGE = b'"' + b"x" * 500_000 + b'"'


@dataclass(slots=True)
class Page:
    """Build a page's state from a stream, like its script."""

    there: socket.socket
    gzip: bool = False
    chunked: bool = False
    status: Any = None
    items: dict[str, Any] = field(default_factory=dict)
    frames: int = 0
    read_bytes: int = 0
    _raw: bytes = b""
    _text: bytearray = field(default_factory=bytearray)
    _unpacking: Any = field(default_factory=lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))

    async def until(self, seen: Callable[[], bool]) -> None:
        """Read until the condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not seen():
                received = await asyncio.get_running_loop().sock_recv(self.there, 1 << 16)
                assert received, "the stream has ended"
                self.read_bytes += len(received)
                self._take(received)

    async def ends(self) -> None:
        """Read until nothing is left."""
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.get_running_loop().sock_recv(self.there, 1 << 20):
                pass

    def _take(self, data: bytes) -> None:
        self._raw += data
        while self.chunked and b"\r\n" in self._raw:
            size = int(self._raw.partition(b"\r\n")[0], 16)
            begin = self._raw.index(b"\r\n") + 2
            if len(self._raw) < begin + size + 2:
                return
            assert self._raw[begin + size : begin + size + 2] == b"\r\n"
            self._unpack(self._raw[begin : begin + size])
            self._raw = self._raw[begin + size + 2 :]
        if not self.chunked:
            self._unpack(self._raw)
            self._raw = b""

    def _unpack(self, body: bytes) -> None:
        plain = self._unpacking.decompress(body) if self.gzip else body
        ended = b"\r\n\r\n" in self._text[-3:] + plain
        self._text += plain
        while ended and b"\r\n\r\n" in self._text:
            block, _, rest = self._text.partition(b"\r\n\r\n")
            self._text = bytearray(rest)
            if block.startswith(b":"):
                continue
            document = json.loads(block.removeprefix(b"event: status\r\ndata: "))
            self.frames += 1
            self.status = document["status"]
            self.items |= document["items"]
            self.items = {name: self.items[name] for name in self.heads(self.status)}

    def heads(self, status: Any) -> list[str]:
        """Return the names of the present items."""
        return list(status["heads"])


class Seen:
    """Run the other side: a porter, and the viewers that have left."""

    def __init__(self) -> None:
        self.gone, self.lost, self.count = set[int](), 0, 0
        self.porter = Porter(self.gone.add, self._loses)

    def _loses(self) -> None:
        self.lost += 1

    def comes(self, *, gzip: bool = False, chunked: bool = False, peer: str = "a") -> Page:
        ours, its = socket.socketpair()
        ours.setblocking(False)
        self.count += 1
        self.porter.enter(self.count, 7, its, peer, gzip=gzip, chunked=chunked)
        return Page(ours, gzip, chunked)

    def tells(self, number: int, items: dict[str, bytes]) -> None:
        text = json.dumps({"number": number, "heads": list(items)}).encode()
        self.porter.tell(7, 1, text, {json.dumps(name).encode(): item for name, item in items.items()})


@pytest.fixture
async def seen() -> AsyncIterator[Seen]:
    made = Seen()
    yield made
    made.porter.close()


@pytest.mark.long
async def test_each_viewer_sees_the_current_state_whenever_it_connects_and_however_slowly_it_reads(seen: Seen) -> None:
    chance = random.Random(7)
    pages, items = [seen.comes()], dict[str, bytes]()
    for number in range(1, 60):
        items = {name: item for name, item in items.items() if chance.random() > 0.1}
        items |= {f"i{chance.randrange(30)}": b"%d" % chance.randrange(5) for _ in range(3)}
        seen.tells(number, items)
        if chance.random() < 0.2:
            pages.append(seen.comes(gzip=chance.random() < 0.5, chunked=chance.random() < 0.5))
        page = chance.choice(pages)
        if chance.random() < 0.3:
            now = number
            await page.until(lambda page=page, now=now: page.status is not None and page.status["number"] >= now)
    for page in pages:
        await page.until(lambda page=page: page.status is not None and page.status["number"] == 59)
        assert page.items == {name: int(item) for name, item in items.items()}
    assert len({(page.gzip, page.chunked) for page in pages}) == 4, "in every form"


@pytest.mark.long
async def test_a_viewer_that_does_not_read_takes_little_memory_and_gets_the_current_state_later(seen: Seen) -> None:
    quick, slow = seen.comes(), [seen.comes() for _ in range(10)]
    seen.tells(0, {})
    await quick.until(lambda: quick.status is not None)
    process = psutil.Process(seen.porter.pid)
    before = process.memory_info().rss
    for number in range(1, 30):
        seen.tells(number, {"large": LARGE[:-9] + b'%08d"' % number})
        await quick.until(lambda number=number: quick.status["number"] == number)
    assert process.memory_info().rss - before < 30_000_000, "they have a state each at most, and share it"
    for page in slow:
        await page.until(lambda page=page: page.status is not None and page.status["number"] == 29)
        assert page.items == quick.items and page.frames <= 4, "not what was in between"


async def test_the_viewers_process_ends_and_starts_with_its_viewers(seen: Seen) -> None:
    page = seen.comes()
    seen.tells(1, {"a": b"1"})
    await page.until(lambda: page.items == {"a": 1})
    os.kill(seen.porter.pid, signal.SIGKILL)
    await page.ends()
    await until("it is lost", lambda: seen.lost == 1, every_s=0.01)
    again = seen.comes()
    seen.tells(2, {"b": b"2"})
    await again.until(lambda: again.items == {"b": 2})
    seen.porter.leave(2)
    await again.ends()
    await until("it is gone", lambda: seen.gone == {2}, every_s=0.01)


async def test_a_stopped_viewer_is_not_waited_for_and_gets_the_latest_state(seen: Seen) -> None:
    page = seen.comes()
    seen.tells(0, {})
    await page.until(lambda: page.status is not None)
    os.kill(seen.porter.pid, signal.SIGSTOP)
    try:
        before = psutil.Process().memory_info().rss
        for number in range(1, 200):
            seen.tells(number, {"large": LARGE})
        assert psutil.Process().memory_info().rss - before < 60_000_000, "one state waits"
    finally:
        os.kill(seen.porter.pid, signal.SIGCONT)
    await page.until(lambda: page.status["number"] == 199)
    assert page.frames <= 4


async def looks_on(port: int, gzip: bool) -> Page:
    """Request the stream of the crowd; return the page once the headers of the answer have come."""
    loop, there = asyncio.get_running_loop(), socket.socket()
    there.setblocking(False)
    await loop.sock_connect(there, ("127.0.0.1", port))
    more = b"Accept-Encoding: gzip\r\n" * gzip
    await loop.sock_sendall(there, b"GET /api/tenant/example/events HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await loop.sock_recv(there, 1)
    assert head.startswith(b"HTTP/1.1 200 ") and (b"content-encoding: gzip" in head) is gzip
    assert b"access-control-allow-origin: *" in head and b"x-content-type-options: nosniff" in head
    return FullPage(there, gzip, chunked=True)


class FullPage(Page):
    """Open a page of the gate's status."""

    def heads(self, status: Any) -> list[str]:
        queues = (queue for pipeline in status["pipelines"] for queue in pipeline["change_queues"])
        return [name for queue in queues for head in queue["heads"] for name in head]


@pytest.mark.long
async def test_streams_of_the_gate_are_handed_out_by_another_process(tmp_path: Path) -> None:
    async with crowded(tmp_path) as (site, address):
        port, here = int(address.rpartition(":")[2]), psutil.Process()
        pages = [await looks_on(port, gzip=True)]
        before = here.num_fds() - 1
        pages += [await looks_on(port, gzip=n % 2 == 0) for n in range(40)]
        for page in pages:
            await page.until(lambda page=page: len(page.items) == 180)
            assert page.read_bytes < 30_000 or not page.gzip, "900 jobs"
        assert here.num_fds() - before < len(pages) + 20, "this test's own sockets, and none of the server's"
        async with httpx.AsyncClient(base_url=address, headers={"Accept-Encoding": "gzip"}) as client:
            answer = await client.get(STATUS)
            assert int(answer.headers["content-length"]) < 30_000, "900 jobs"
            assert {
                i["id"] for p in answer.json()["pipelines"] for q in p["change_queues"] for h in q["heads"] for i in h
            }
            assert answer.status_code == 200
        place, mirror = site.context.map.tenant("example").pipeline("check"), site.context.mirror
        record = place.record.path
        (entry,) = [one for one in mirror.under(place.path) if one.path == record]
        await site.context.store.commit([], [place.record.put(PIPELINE.record(State()))])
        assert entry.value != place.record.put(PIPELINE.record(State())).value
        for page in pages:
            await page.until(lambda page=page: len(page.items) == 60)
            page.there.close()
        await until("the process is gone", lambda: not site.audience.porter.pid, every_s=0.01)


class CountingExecutor(ThreadPoolExecutor):
    """Count the tasks that are handed to a thread."""

    count = 0

    def submit(self, *args: Any, **more: Any) -> Future[Any]:
        self.count += 1
        return super().submit(*args, **more)


@pytest.mark.long
async def test_repeated_requests_of_a_status_get_the_same_bytes_and_use_no_thread(tmp_path: Path) -> None:
    executor = CountingExecutor(2)
    asyncio.get_running_loop().set_default_executor(executor)
    async with crowded(tmp_path) as (_, address), httpx.AsyncClient(base_url=address) as client:
        first = await client.get(STATUS)
        before, known = executor.count, {"If-None-Match": first.headers["etag"]}
        for _ in range(20):
            again, unchanged = await client.get(STATUS), await client.get(STATUS, headers=known)
            assert (again.content, again.headers["etag"]) == (first.content, first.headers["etag"])
            assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert before and executor.count == before, "the first was compressed in a thread, for everybody"


class CountingEstimates(Estimates):
    """Count the statuses that are built: each determines its edition once."""

    made = 0

    def edition(self) -> int:
        self.made += 1
        return super().edition()


def timeless(items: dict[str, Any]) -> dict[str, Any]:
    """Return items without members that change with time."""
    now = {"elapsed_time": None, "remaining_time": None}
    return {name: {**one, **now, "jobs": [job | now for job in one["jobs"]]} for name, one in items.items()}


def polled(answer: httpx.Response) -> dict[str, Any]:
    """Return the items in an answer."""
    queues = (queue for pipeline in answer.json()["pipelines"] for queue in pipeline["change_queues"])
    return timeless({one["id"]: one for queue in queues for head in queue["heads"] for one in head})


@pytest.mark.long
async def test_a_change_is_rendered_once_and_all_viewers_get_the_same(tmp_path: Path) -> None:
    metrics = ProcessMetrics()
    served = crowded(tmp_path, observer=metrics)
    async with served as (site, address), httpx.AsyncClient(base_url=address) as client:
        port, place = int(address.rpartition(":")[2]), site.context.map.tenant("example").pipeline("gate")
        counting = site.shots.estimates = CountingEstimates(site.history, lambda: NOW_MS)
        known, (queue,), changes = f'W/"{(await site.shot("example")).tag}"', crowd()["gate"].queues, 5
        assert counting.made == 2, "anew once it was learnt how long jobs take"
        pages = [await looks_on(port, gzip=n % 2 == 0) for n in range(6)]
        for window in range(1, 1 + changes):
            put = place.queue(queue.id).record.put(QUEUE.record(replace(queue, window=window)))
            (entry,) = await site.context.store.commit([], [put])
            assert entry is not None, "it was written"
            await site.context.mirror.reached(put.path, entry.version)
            site.shots.stale()
            requests = (client.get(STATUS, headers={"If-None-Match": known}) for _ in range(10))
            answers = await asyncio.gather(*requests)
            ((tag, status, _),) = {(one.headers["etag"], one.status_code, one.content) for one in answers}
            assert (tag != known, status) == (True, 200)
            known, items = tag, polled(answers[0])
            assert sum(one["active"] for one in items.values()) == 120 + window
            for page in pages:
                await page.until(lambda page=page, items=items: timeless(page.items) == items)
        assert counting.made == 2 + changes
        costs = metrics.text().decode()
        assert not re.search(r'pages_cpu_seconds_total\{kind="stream"\} 0\.0$', costs, re.MULTILINE), (
            "looks are counted"
        )


@pytest.mark.long
async def test_a_person_who_acts_sees_the_result_although_viewers_used_up_the_time_for_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        crowded(tmp_path, Access(token="ours")) as (site, address),
        httpx.AsyncClient(base_url=address, headers={"Authorization": "Bearer ours"}) as client,
    ):
        assert not (await client.get(STATUS)).json()["state"]["trigger_queue_paused"]
        commit = site.context.store.commit

        async def commit_among_viewers(*args: Any, **more: Any) -> Any:
            written = await commit(*args, **more)
            site.shots._spent["example"].left_s = -1_000
            return written

        monkeypatch.setattr(site.context.store, "commit", commit_among_viewers)
        answer = await client.post("/api/tenant/example/state", json={"trigger_queue_paused": True})
        assert answer.status_code == 200, answer.text
        assert (await client.get(STATUS)).json()["state"]["trigger_queue_paused"]


@pytest.mark.long
async def test_content_shown_to_members_is_not_shown_to_strangers(tmp_path: Path) -> None:
    closed = TENANTS + "    access-rules: [members]\n"
    rule = "- authorization-rule: {name: members, conditions: [{groups: members}]}\n"
    async with (
        crowded(tmp_path, Access(token="ours"), rule + closed) as (_, address),
        httpx.AsyncClient(base_url=address) as client,
    ):
        for _ in range(2):
            member = await client.get(STATUS, headers={"Authorization": "Bearer ours"})
            assert member.status_code == 200 and len(polled(member)) == 180
            for more in ({}, {"If-None-Match": member.headers["etag"]}, {"If-None-Match": "*"}, {"Cookie": "a=b"}):
                stranger = await client.get(STATUS, headers=more)
                assert (
                    stranger.status_code == 401 and "etag" not in stranger.headers and b"topic" not in stranger.content
                )


@pytest.mark.long
async def test_events_are_also_served_over_tls(tmp_path: Path) -> None:
    tls, stop = certificate(tmp_path), asyncio.Event()
    async with crowded(tmp_path) as (site, _):
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(serve(create_app(site), "127.0.0.1", 0, stop, bound.set_result, tls=tls))
        address = f"https://127.0.0.1:{await bound}/api/tenant/example/events"
        async with (
            httpx.AsyncClient(verify=False) as client,
            asyncio.timeout(DEADLINE_S),
            client.stream("GET", address) as answer,
        ):
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if text.endswith("\r\n\r\n"):
                    break
        assert len(json.loads(text.partition("data: ")[2])["items"]) == 180
        stop.set()
        await serving


def test_the_first_event_of_a_stream_contains_the_current_time() -> None:
    clock = [100.0]
    scene = Scene(lambda: clock[0])
    assert scene.update(5_000, b"{}", {b'"a"': b"1"}) and not scene.update(6_000, b"{}", {b'"a"': b"1"})
    clock[0] += 60
    event = scene.full().form(gzip=False, chunked=False)
    assert json.loads(event.partition(b"data: ")[2]) == {"now": 65_000, "status": {}, "items": {"a": 1}}
    assert scene.update(65_000, b"{}", {}, [b'"a"']) and not scene.update(65_000, b"{}", {}, [b'"a"'])
    for frame in (scene.change, scene.full()):
        assert b'"items":{}' in frame.form(gzip=False, chunked=False)
