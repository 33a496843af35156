"""Test uploads from an executor's disk to the log store: complete, in parts, again after a failure, and partial
ones."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from headgate.adapters.logs import upload
from headgate.adapters.logs.bucket import LogBucket
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.manifests import MEMBER_SIZE_BYTES, Manifest, parts_of
from headgate.adapters.logs.reader import StoredLogs, missing
from headgate.adapters.logs.upload import UPLOADS_MAX, Uploads
from headgate.base.tasks import end
from headgate.ports.logstore import LogStore, LogStoreError, StoredLog
from headgate.testing.clock import DEADLINE_S
from headgate.testing.logstores import bucket, keys
from tests.waiting import until

LOG = "".join(f"2026-01-01 00:00:00.000 | line {number} {'x' * (number % 70)}\n" for number in range(60_000)).encode()


class Unsteady:
    """Imitate a log store that fails if `why` returns a reason for a key."""

    encodes = True

    def __init__(self, store: LogStore) -> None:
        self.store, self.puts = store, list[str]()
        self.why: Callable[[str], str] = lambda key: ""
        self.takes = asyncio.Event()
        """While cleared, every put waits."""
        self.takes.set()

    async def put(self, key: str, content: AsyncGenerator[bytes, None], *, kind: str, encoding: str = "") -> None:
        self.puts.append(key)
        await self.takes.wait()
        if why := self.why(key):
            raise LogStoreError(why)
        await self.store.put(key, content, kind=kind, encoding=encoding)

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        return self.store.read(key, start, end)

    async def look(self, key: str) -> StoredLog | None:
        return await self.store.look(key)

    def keys(self, prefix: str = "") -> AsyncIterator[StoredLog]:
        return self.store.keys(prefix)

    async def delete(self, keys: Collection[str]) -> None:
        await self.store.delete(keys)


def made(root: Path, store: LogStore, interval_s: float = 3_600) -> Uploads:
    return Uploads(LocalLogs(root), store, lambda: 1, host="executor.example", interval_s=interval_s)


@asynccontextmanager
async def working(uploads: Uploads) -> AsyncIterator[Uploads]:
    task = asyncio.ensure_future(uploads.run())
    try:
        yield uploads
    finally:
        await end(task)


async def completed(store: LogStore, build: str) -> Manifest:
    async def found() -> Manifest | None:
        manifest = await StoredLogs(store).of(build)
        return manifest if manifest is not None and manifest.complete else None

    return await until(f"{build} is complete", found, every_s=0.01)


async def read(store: LogStore, manifest: Manifest, path: str, start: int = 0, end: int | None = None) -> bytes:
    content = StoredLogs(store).file(manifest, path)
    assert content is not None, path
    return b"".join([piece async for piece in content.read(start, content.size_bytes if end is None else end)])


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    if request.param == "directory":
        return LogDirectory(tmp_path / "kept")
    return LogBucket(bucket(request.getfixturevalue("s3_server"), f"b{uuid.uuid4().hex}"))


async def test_all_output_of_a_build_is_stored_and_any_part_can_be_read(store: LogStore, tmp_path: Path) -> None:
    image = random.Random(1).randbytes(300_000)
    left = {"job-output.txt": LOG, "report/index.html": b"<h1>all is well</h1>" * 100, "shot.png": image, "empty": b""}
    assert len(LOG) > 2 * MEMBER_SIZE_BYTES
    async with working(made(tmp_path / "logs", store)) as uploads:
        async with uploads.following("b1"):
            for name, content in left.items():
                path = tmp_path / "logs/b1" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        manifest = await completed(store, "b1")
    assert {file.path: (file.size_bytes, file.digest) for file in manifest.files} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in left.items()
    }
    assert {file.path: file.kind.partition(";")[0] for file in manifest.files} == {
        "job-output.txt": "text/plain",
        "report/index.html": "text/html",
        "shot.png": "image/png",
        "empty": "text/plain",
    }
    chance = random.Random(2)
    for name, content in left.items():
        assert await read(store, manifest, name) == content
        for _ in range(5):
            start, last = sorted(chance.randrange(len(content) + 1) for _ in range(2))
            assert await read(store, manifest, name, start, last) == content[start:last], (name, start, last)
    assert (manifest.lost, manifest.parts) == ((), ())
    if store.encodes:
        found = await store.look("b1/job-output.txt")
        assert found is not None and found.size_bytes < len(LOG) / 5


async def test_log_output_is_stored_while_the_build_runs_and_survives_its_executor(
    store: LogStore, tmp_path: Path
) -> None:
    log, lines = tmp_path / "logs/b2/job-output.txt", LOG.splitlines(keepends=True)
    uploads = made(tmp_path / "logs", store, interval_s=0.01)
    following = uploads.following("b2")
    await following.__aenter__()
    written = 0
    for upto in (10, 2_000, 2_500):
        with log.open("ab") as file:
            file.write(b"".join(lines[written:upto]) + b"half a li" * (upto == 2_500))
        written, size = upto, sum(map(len, lines[:upto]))

        async def there(size: int = size) -> Manifest | None:
            found = await StoredLogs(store).of("b2")
            return found if found is not None and sum(part.size_bytes for part in found.parts) == size else None

        manifest = await until("a part is there", there, every_s=0.01)
    assert not manifest.complete and len(manifest.parts) >= 3
    data = await read(store, manifest, "job-output.txt")
    assert data.startswith(b"".join(lines[:2_500])) and data.endswith(b"build are missing --\n")
    assert b"executor.example stopped before it stored the rest" in data[size:] and "rest" in missing(manifest)
    assert await read(store, manifest, "job-output.txt", size - 5, size + 3) == data[size - 5 : size + 3]
    assert StoredLogs(store).file(manifest, "report/index.html") is None

    # the executor is killed: nothing of this process continues, and the kernel frees its locks
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await end(task)
    uploads._local.release("b2")
    async with working(made(tmp_path / "logs", store)):  # another one continues where it stopped
        manifest = await completed(store, "b2")
        assert await read(store, manifest, "job-output.txt") == log.read_bytes()

        async def gone() -> bool:
            return not await keys(store, parts_of("b2"))

        await until("the parts are gone, as the whole is there", gone, every_s=0.01)


@pytest.mark.parametrize(
    ("interval_s", "is_cut_off"),
    [(0.01, False), (3_600, False), (3_600, True)],
    ids=["long", "shorter than an interval", "cut off at once"],
)
async def test_logs_of_runs_on_lost_executors_stay_next_to_the_log_of_the_last_run(
    store: LogStore, tmp_path: Path, interval_s: float, is_cut_off: bool
) -> None:
    """Lose two executors with their disks; the third ends the build, at once or after it has stored parts, or it is
    cancelled there."""
    for number in (1, 2):
        async with made(tmp_path / f"e{number}", store, interval_s=0.01).following("b7"):
            (tmp_path / f"e{number}/b7/job-output.txt").write_bytes(b"of run %d\n" % number)

            async def there(number: int = number) -> Manifest | None:
                found = await StoredLogs(store).of("b7")
                return found if found is not None and found.parts and len(found.files) == number - 1 else None

            manifest = await until("a part is there", there, every_s=0.01)
    assert await read(store, manifest, "job-output.lost-1.txt", 0, 9) == b"of run 1\n"
    async with working(made(tmp_path / "e3", store, interval_s)) as uploads:
        with suppress(InterruptedError):
            async with uploads.following("b7"):
                (tmp_path / "e3/b7/job-output.txt").write_bytes(b"of run 3\n")
                if is_cut_off:
                    raise InterruptedError
        manifest = await completed(store, "b7")
    found = {file.path: await read(store, manifest, file.path) for file in manifest.files}
    assert found.pop("job-output.txt") == b"of run 3\n"
    assert sorted(found) == ["job-output.lost-1.txt", "job-output.lost-2.txt"]
    for number, content in enumerate(found.values(), 1):
        assert content.startswith(b"of run %d\n-- executor.example stopped before it stored" % number)


async def test_an_unavailable_store_delays_nobody_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(upload, "RETRY_MAX_S", 0.01)
    store = Unsteady(LogDirectory(tmp_path / "kept"))
    store.why = lambda key: "the network is away"
    async with working(made(tmp_path / "logs", store, interval_s=0.001)) as uploads:
        for number in range(10):  # more than are uploaded at a time
            async with uploads.following(f"b{number}"):
                (tmp_path / f"logs/b{number}/job-output.txt").write_text(f"{number}\n")
        await until("much was tried", lambda: len(store.puts) >= 40, every_s=0.001)
        assert uploads.waiting == 10 and await StoredLogs(store).of("b1") is None
        store.why = lambda key: "this build alone fails" if key.startswith(("b3/", "_builds/b4")) else ""
        for number in {*range(10)} - {3, 4}:
            assert await read(store, await completed(store, f"b{number}"), "job-output.txt") == f"{number}\n".encode()
        for number in (3, 4):
            found = await StoredLogs(store).of(f"b{number}")
            assert found is None or not found.complete
        store.why = lambda key: ""
        for number in (3, 4):
            await completed(store, f"b{number}")


async def test_an_executor_that_shuts_down_still_stores_the_remaining_logs(tmp_path: Path) -> None:
    store = Unsteady(LogDirectory(tmp_path / "kept"))
    uploads = made(tmp_path / "logs", store)
    for build in ("b1", "b2"):
        async with uploads.following(build):
            (tmp_path / "logs" / build / "job-output.txt").write_text("the end\n")
    store.why = lambda key: "away" if key.startswith("b2/") else ""
    await uploads.close()
    assert (await completed(store, "b1")).files and uploads.waiting == 1
    half = await StoredLogs(store).of("b2")
    assert half is not None and not half.complete


async def test_a_truncated_upload_never_counts_as_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that lost its executor runs again, under its id, while the first executor returns."""
    monkeypatch.setattr(upload, "LOOK_AGAIN_S", 0.001)
    store, running, looked = LogDirectory(tmp_path / "kept"), {"b1"}, list[str]()

    def runs(build: str) -> bool:
        looked.append(build)
        return build in running

    first, second = made(tmp_path / "first", store), made(tmp_path / "second", store)
    first._running = runs
    with pytest.raises(ConnectionError):  # it loses its session
        async with first.following("b1"):
            (tmp_path / "first/b1/job-output.txt").write_text("half of it\n")
            raise ConnectionError
    async with working(first):
        await until("it has looked again and again", lambda: len(looked) >= 10, every_s=0.001)
        assert await StoredLogs(store).of("b1") is None and first.waiting == 0
        async with second.following("b1"):
            (tmp_path / "second/b1/job-output.txt").write_text("all of it\n")
        await second.close()
        running.clear()
        await until("it is stored", lambda: first._due["b1"].stored, every_s=0.001)
    assert await read(store, await completed(store, "b1"), "job-output.txt") == b"all of it\n"

    # and if it took the interruption for the end, the executor that completes the build has the last word
    await made(tmp_path / "first", store)._upload_all("b2", upload._Due(0, ran=True, here=True))
    async with second.following("b2"):
        (tmp_path / "second/b2/job-output.txt").write_text("all of it\n")
    await second.close()
    assert await read(store, await completed(store, "b2"), "job-output.txt") == b"all of it\n"


async def test_two_executors_on_one_disk_take_a_build_once(tmp_path: Path) -> None:
    store = Unsteady(LogDirectory(tmp_path / "kept"))
    first, second = made(tmp_path / "logs", store), made(tmp_path / "logs", store)
    (tmp_path / "logs/left").mkdir(parents=True)
    (tmp_path / "logs/left/job-output.txt").write_text("of one that died\n")
    async with first.following("b1"), working(second):
        (tmp_path / "logs/b1/job-output.txt").write_text("half of it\n")
        await completed(store, "left")
        assert await StoredLogs(store).of("b1") is None, "it runs"
        async with working(first):
            await asyncio.sleep(0)
    assert store.puts.count("left/job-output.txt") == 1


async def test_old_logs_that_wait_for_an_upload_keep_no_descriptors_open(tmp_path: Path) -> None:
    """An executor that has kept the logs of years gets a log store."""
    builds = [f"b{number}" for number in range(50)]
    for build in builds:
        (tmp_path / "logs" / build).mkdir(parents=True)
        (tmp_path / "logs" / build / "job-output.txt").write_text("of last year\n")
    store = Unsteady(LogDirectory(tmp_path / "kept"))
    store.takes.clear()
    async with working(made(tmp_path / "logs", store)) as uploads:
        await until("as many are uploaded as are at once", lambda: len(store.puts) >= UPLOADS_MAX)
        others = LocalLogs(tmp_path / "logs")
        free = [build for build in reversed(builds) if others.hold(build)]
        assert len(free) == len(builds) - UPLOADS_MAX, "they are held one after the other, as they are uploaded"
        for build in free:
            others.release(build)
        assert uploads.waiting == 0


KILLED = """
import asyncio, sys
from pathlib import Path
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.upload import Uploads

root = Path(sys.argv[1])

class Stuck(LogDirectory):
    async def put(self, key, content, *, kind, encoding=""):
        async def some():
            async for piece in content:
                yield piece
                if key == "b1/report.html":
                    print("stuck", flush=True)
                    await asyncio.Event().wait()
        await super().put(key, some(), kind=kind, encoding=encoding)
        if key.startswith("_builds"):
            print("record", flush=True)

async def main():
    uploads = Uploads(LocalLogs(root / "logs"), Stuck(root / "kept"), lambda: 1, host="killed.example", interval_s=0.01)
    async with uploads.following("b1"):
        (root / "logs/b1/job-output.txt").write_text("until then\\n")
        await asyncio.to_thread(sys.stdin.readline)
        (root / "logs/b1/job-output.txt").open("a").write("RESULT: SUCCESS\\n")
        (root / "logs/b1/report.html").write_text("x" * 3_000_000)
    await uploads.run()

asyncio.run(main())
"""


async def test_an_executor_that_is_killed_during_an_upload_leaves_the_log_complete(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await program.stdout.readline() == b"record\n"
            program.stdin.write(b"\n")
            await program.stdin.drain()
            while (line := await program.stdout.readline()) != b"stuck\n":
                assert line == b"record\n", line
    finally:
        os.kill(program.pid, signal.SIGKILL)
        await program.wait()
    store = LogDirectory(tmp_path / "kept")
    manifest = await StoredLogs(store).of("b1")
    assert manifest is not None and not manifest.complete and manifest.files == ()
    data = await read(store, manifest, "job-output.txt")
    assert data.startswith(b"until then\n") and b"killed.example stopped before it stored the rest" in data
    assert StoredLogs(store).file(manifest, "report.html") is None, "half of it is not shown"
    async with working(made(tmp_path / "logs", store)):  # its disk comes back
        manifest = await completed(store, "b1")
    assert len(await read(store, manifest, "report.html")) == 3_000_000
    assert (await read(store, manifest, "job-output.txt")).endswith(b"RESULT: SUCCESS\n")
