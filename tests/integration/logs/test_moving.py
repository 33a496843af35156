"""An export has the records of logs: where the files alone were copied, links to old logs lead on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.adapters.logs import manifests
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.manifests import Manifest, StoredFile
from headgate.adapters.logs.reader import StoredLogs
from headgate.adapters.logs.transfer import TOGETHER, records
from headgate.base.errors import UserError
from headgate.cli.jobs import log_store
from headgate.cli.settings import read
from headgate.cli.store.store import command
from headgate.cli.store.urls import open_url
from headgate.ports.logstore import LogStore, StoredLog
from headgate.store.types import Put
from headgate.testing.logstores import bucket, keys, pieces, read_all

BUILDS = [uuid.UUID(int=number).hex for number in range(2 * TOGETHER + 3)]
LOG = b"line\n" * 100


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def manifest(build: str, **other: object) -> Manifest:
    file = StoredFile("job-output.txt", len(LOG), manifests.TEXT, "a" * 64)
    return Manifest(**{"build": build, "at_ms": 1, "complete": True, "files": (file,), **other})  # type: ignore[arg-type]


async def keep(store: LogStore, one: Manifest) -> None:
    await store.put(manifests.manifest_key(one.build), pieces(manifests.written(one)), kind="application/json")


async def keep_file(store: LogStore, build: str) -> None:
    await store.put(manifests.file_key(build, "job-output.txt"), pieces(LOG), kind="text/plain")


class Place:
    """A directory with settings and a store of its own, and a place for logs."""

    def __init__(self, root: Path, s3_server: str = "") -> None:
        root.mkdir()
        logs = f"url = {root}/kept"
        if s3_server:
            address = bucket(s3_server, f"b{uuid.uuid4().hex}", "of/headgate")
            (root / "secret").write_text(address.secret_key)
            (root / "secret").chmod(0o600)
            logs = (
                f"url = s3://{address.bucket}/{address.prefix}\nendpoint = {address.endpoint}\n"
                f"access_key = {address.access_key}\nsecret_key_file = secret"
            )
        self.config = root / "headgate.conf"
        self.config.write_text(f"[scheduler]\ntenant_config = tenants.yaml\nstate_dir = {root}/state\n[logs]\n{logs}\n")
        (root / "tenants.yaml").write_text("[]\n")
        found = log_store(read(self.config))
        assert found is not None
        self.logs = found

    def fill(self) -> None:
        async def body() -> None:
            backend = await open_url(read(self.config).store_url)
            await backend.commit([], [Put("/zuul/a", b"1")])
            await backend.close()
            for build in BUILDS:
                await keep(self.logs, manifest(build))
                await keep_file(self.logs, build)

        asyncio.run(body())


@pytest.fixture(params=["directory", "bucket"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Place, Place]:
    server = request.getfixturevalue("s3_server") if request.param == "bucket" else ""
    old, new = Place(tmp_path / "old", server), Place(tmp_path / "new", server)
    old.fill()
    return old, new


def test_records_of_logs_go_along_and_newer_ones_stay(places: tuple[Place, Place], tmp_path: Path) -> None:
    old, new = places
    newer = manifest(BUILDS[0], files=(), lost=("1 artifacts were removed after 2 days",))

    async def prepare() -> None:
        await keep(new.logs, newer)
        for build in BUILDS:
            await keep_file(new.logs, build)

    async def found() -> None:
        reader = StoredLogs(new.logs)
        assert await reader.of(BUILDS[0]) == newer
        for build in BUILDS[1:]:
            stored = await reader.of(build)
            assert stored == manifest(build)
            content = reader.file(stored, "job-output.txt")
            assert content is not None and b"".join([piece async for piece in content.read(0, len(LOG))]) == LOG

    asyncio.run(prepare())
    assert run("export", "--config", old.config, tmp_path / "file").exit_code == 0
    imported = run("import", "--config", new.config, tmp_path / "file")
    assert f"{len(BUILDS) - 1} records of logs imported\n" in imported.output, imported
    asyncio.run(found())


def test_an_export_of_an_earlier_release_is_imported(tmp_path: Path) -> None:
    old, new = Place(tmp_path / "old"), Place(tmp_path / "new")
    old.fill()
    run("export", "--config", old.config, "--no-logs", tmp_path / "file")
    text = (tmp_path / "file").read_text()
    assert '"log"' not in text and text.startswith('{"headgate_export":3,')
    (tmp_path / "file").write_text(text.replace('{"headgate_export":3,', '{"headgate_export":2,'))
    imported = run("import", "--config", new.config, tmp_path / "file")
    assert imported.output.startswith("1 entries imported\n") and asyncio.run(keys(new.logs)) == []


@pytest.mark.parametrize(
    "record",
    [
        '{"build":"BUILD","at_ms":1,"files":[{"path":"../x","size_bytes":1,"kind":"text/plain","digest":""}]}',
        '{"build":"BUILD","at_ms":1,"files":[{"path":"x","size_bytes":1,"kind":"text/plain\\r\\nx: y","digest":""}]}',
        '{"build":"BUILD","at_ms":1,"files":[{"path":"x","size_bytes":-1,"kind":"text/plain","digest":""}]}',
        '{"build":"BUILD","at_ms":1,"files":[{"path":"x","size_bytes":9,"kind":"a/b","digest":"","members":[-1,2]}]}',
        '{"build":"BUILD","at_ms":1,"parts":[[1,-1]]}',
        '{"build":"BUILD","at_ms":1,"lost":["\\u001b[2J"]}',
        '{"build":"another","at_ms":1}',
        '{"files":[]}',
    ],
)
def test_a_record_that_no_reader_could_use_is_refused_and_nothing_is_imported(tmp_path: Path, record: str) -> None:
    old, new = Place(tmp_path / "old"), Place(tmp_path / "new")
    old.fill()
    run("export", "--config", old.config, tmp_path / "file")
    *lines, tail = (tmp_path / "file").read_text().splitlines()
    bad = f'{{"log":"{BUILDS[0]}","record":{record.replace("BUILD", BUILDS[0])}}}'
    spoilt = "\n".join([*lines, bad, tail.replace(f'"logs":{len(BUILDS)}', f'"logs":{len(BUILDS) + 1}')]) + "\n"
    (tmp_path / "spoilt").write_text(spoilt)
    refused = run("import", "--config", new.config, tmp_path / "spoilt")
    assert isinstance(refused.exception, UserError) and "nothing else was imported" in str(refused.exception)
    assert "\x1b" not in str(refused.exception)
    # The store is still empty, so the right file can be imported now.
    assert run("import", "--config", new.config, tmp_path / "file").output.startswith("1 entries imported\n")
    assert set(asyncio.run(keys(new.logs))) == {manifests.manifest_key(build) for build in BUILDS}


def test_an_unavailable_log_store_stops_an_export_that_includes_its_records(tmp_path: Path, s3_server: str) -> None:
    old = Place(tmp_path / "old", s3_server)
    old.fill()
    gone = "\n".join("url = s3://no-such-bucket" if line.startswith("url") else line
                     for line in old.config.read_text().splitlines())  # fmt: skip
    old.config.write_text(gone)
    refused = run("export", "--config", old.config, tmp_path / "file")
    assert isinstance(refused.exception, UserError) and "`--no-logs` leaves them out" in str(refused.exception)
    assert not list(tmp_path.glob("file*"))
    assert run("export", "--config", old.config, "--no-logs", tmp_path / "file").exit_code == 0


async def test_an_export_has_few_records_in_memory_at_a_time(tmp_path: Path) -> None:
    class Counting(LogDirectory):
        reads = 0

        async def keys(self, prefix: str = "") -> AsyncIterator[StoredLog]:
            async for one in super().keys(prefix):
                self.reads += 1
                yield one

    store = Counting(tmp_path / "kept")
    for build in BUILDS:
        await keep(store, manifest(build))
    taken = 0
    async for build, record in records(store):
        assert store.reads <= taken + TOGETHER and manifests.parsed(record).build == build
        taken += 1
    assert taken == len(BUILDS)
    await store.put("_builds/odd.json", pieces(b"{"), kind="application/json")
    assert len([build async for build, _ in records(store)]) == len(BUILDS), "what is no record is left out"
    assert await read_all(store, "_builds/odd.json") == b"{"
