"""Test how a web process serves logs of executors: it has no files of them itself."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.adapters.logs.bucket import LogBucket
from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.reader import StoredLogs
from headgate.adapters.logs.upload import Uploads
from headgate.adapters.process.joblog import follow
from headgate.adapters.sql.history import SqlHistory
from headgate.gate.state.works import BuildOutcome
from headgate.ports.logstore import LogStore
from headgate.services.context import ProcessSettings
from headgate.services.recorder import Recorder
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.logstores import bucket, pieces
from headgate.testing.repositories import Repositories
from headgate.web.access import PeerFleet
from headgate.web.app import create_app
from headgate.web.buildlogs import BuildLogs, RemoteLogs
from headgate.web.peers.requests import HeadApplication
from headgate.web.site import Site
from tests.site import client_of, site_of
from tests.waiting import until

from ..conftest import TENANTS

LOG = b"".join(b"2026-01-01 00:00:00.000 | line %d\n" % number for number in range(60_000))
PAGE = b"<script>alert(document.domain)</script><h1>coverage</h1>"
PLAIN = {"accept-encoding": "identity"}


@dataclass
class World:
    client: httpx.AsyncClient
    build: str
    store: LogStore
    site: Site

    async def get(self, path: str, **headers: str) -> httpx.Response:
        url = f"/t/example/logs/{self.build}/{path}"
        return await self.client.get(url, headers={**PLAIN, **{k.replace("_", "-"): v for k, v in headers.items()}})

    async def description(self) -> dict[str, Any]:
        answer = await self.client.get(f"/api/tenant/example/build/{self.build}")
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
async def world(tmp_path: Path, repositories: Repositories, s3_server: str) -> AsyncIterator[World]:
    """Provide an ended build with nothing in the store yet."""
    store = LogBucket(bucket(s3_server, f"b{uuid.uuid4().hex}"), retries_max=0)
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running, httpx.AsyncClient() as client:
        context = running.context
        context.pages.url = "https://gate.example"
        running.runner.jobs = {"unit": lambda spec, _: BuildOutcome(spec.build, "SUCCESS", start_ms=9, end_ms=99)}
        repositories.propose("code/api", "one", {"a": "1\n"})
        ended = await running.history.result_of("one", "check")
        (build,) = ended.builds
        await Recorder(context, history)._keep(ended)
        remote = RemoteLogs(context, lambda: client, PeerFleet(context))
        logs = StoredLogs(store)
        site = site_of(context, running.scheduler.tenants, history, BuildLogs(tmp_path / "none", follow, remote, logs))
        async with client_of(HeadApplication(create_app(site)), "http://gate.example") as asking:
            yield World(asking, build.uuid, store, site)
    history.close()


async def leave(world: World, root: Path, files: dict[str, bytes]) -> None:
    uploads = Uploads(LocalLogs(root), world.store, lambda: 1, host="executor.example", interval_s=3_600)
    async with uploads.following(world.build):
        for name, content in files.items():
            path = root / world.build / name
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(path.write_bytes, content)
    await uploads.close()


@pytest.mark.long
async def test_files_are_served_with_their_type_entirely_or_in_part(world: World, tmp_path: Path) -> None:
    names = ("job-output.txt", "report/a b.html", "report/shot.png", "noise", "core")
    contents = (LOG, PAGE, b"\x89PNG", b"plain text", b"\x7fELF\0\0")
    await leave(world, tmp_path / "executor", dict(zip(names, contents, strict=True)))
    found = await world.get("job-output.txt")
    assert (found.status_code, found.content, found.headers["content-length"]) == (200, LOG, str(len(LOG)))
    assert found.headers["accept-ranges"] == "bytes" and "accept-encoding" in found.headers["vary"].lower()
    tag = found.headers["etag"]

    packed = await world.get("job-output.txt", accept_encoding="br, gzip;q=0.8")
    assert packed.headers["content-encoding"] == "gzip" and packed.content == LOG
    assert int(packed.headers["content-length"]) < len(LOG) / 4 and packed.headers["etag"] != tag
    assert "content-encoding" not in (await world.get("job-output.txt", accept_encoding="gzip;q=0")).headers

    size = len(LOG)
    for requested, start, end in (
        ("bytes=5-9", 5, 10), ("bytes=-7", size - 7, size), (f"bytes={size - 3}-", size - 3, size),
        ("bytes=999990-1000010", 999_990, 1_000_011), (f"bytes=0-{10 * size}", 0, size), ("bytes=0-0", 0, 1),
    ):  # fmt: skip
        part = await world.get("job-output.txt", range=requested, accept_encoding="gzip")
        assert (part.status_code, part.content) == (206, LOG[start:end]), requested
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}" and part.headers["etag"] == tag
    for requested in (f"bytes={size}-", "bytes=-0"):
        none = await world.get("job-output.txt", range=requested)
        assert (none.status_code, none.headers["content-range"]) == (416, f"bytes */{size}"), requested
    for requested in ("bytes=0-1,5-6", "bytes=9-5", "bytes=-", "lines=1-2", "bytes=x-1", "bytes=" + "9" * 5_000 + "-"):
        assert (await world.get("job-output.txt", range=requested)).content == LOG, requested
    assert (await world.get("job-output.txt", range="bytes=0-1", if_range='"other"')).content == LOG
    assert (await world.get("job-output.txt", range="bytes=0-1", if_range=tag)).content == LOG[:2]
    assert (await world.get("job-output.txt", if_none_match=f'"x", {tag}')).status_code == 304
    head = await world.client.head(f"/t/example/logs/{world.build}/job-output.txt", headers=PLAIN)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")

    kinds = ("text/plain; charset=utf-8", "text/html; charset=utf-8", "image/png", "text/plain; charset=utf-8")
    for name, kind in zip(names, (*kinds, "application/octet-stream"), strict=True):
        assert (await world.get(name)).headers["content-type"] == kind, name
    page = await world.get("report/a%20b.html")
    assert page.content == PAGE and page.headers["content-disposition"] == "inline; filename*=UTF-8''a%20b.html"


@pytest.mark.long
async def test_a_build_is_described_with_its_log_and_the_missing_parts(world: World, tmp_path: Path) -> None:
    description = await world.description()
    ours = f"/t/example/logs/{world.build}/"
    assert description["log_url"] == f"http://gate.example{ours}"
    assert "uploaded none of its logs" in description["log_missing"]
    assert (await world.get("job-output.txt")).status_code == 404

    # its executor died after a part of the log
    uploads = Uploads(LocalLogs(tmp_path / "x"), world.store, lambda: 1, host="dead.example", interval_s=0.01)
    async with uploads.following(world.build):
        await asyncio.to_thread((tmp_path / "x" / world.build / "job-output.txt").write_bytes, LOG)
        await until("a part is kept", lambda: world.site.logs.stored.of(world.build), every_s=0.01)  # type: ignore[union-attr]
    part = await world.get("job-output.txt", range="bytes=-200")
    assert part.status_code == 206 and b"dead.example stopped before it stored the rest" in part.content
    assert (await world.get("job-output.txt", range="bytes=0-99")).content == LOG[:100]
    assert "dead.example stopped before it stored" in (await world.description())["log_missing"]
    assert "The logs are incomplete: dead.example" in (await world.client.get(ours)).text
    assert [one["path"] for one in (await world.client.get(f"/api{ours}".replace("/t/", "/tenant/")
            .replace(f"logs/{world.build}/", f"build/{world.build}/logs"))).json()] == ["job-output.txt"]  # fmt: skip

    await leave(world, tmp_path / "y", {"job-output.txt": LOG, "report.html": PAGE})  # it was run again
    assert "log_missing" not in await world.description()
    assert (await world.get("job-output.txt")).content == LOG
    manifest = next(a["url"] for a in (await world.description())["artifacts"] if a["name"] == "Zuul Manifest")
    assert [one["name"] for one in (await world.client.get(manifest)).json()["tree"]] == [
        "job-output.lost-1.txt",
        "job-output.txt",
        "report.html",
    ]

    # The bucket is for everybody.
    site, settings = world.site, ProcessSettings(logs_root="https://logs.example/of")
    context = dataclasses.replace(site.context, settings=settings)
    async with client_of(site_of(context, site.tenants, site.history, site.logs), "http://gate.example") as client:
        described = await dataclasses.replace(world, client=client).description()
    assert described["log_url"] == f"https://logs.example/of/{world.build}/"


@pytest.mark.long
async def test_a_damaged_or_absent_store_is_an_error_of_that_file_alone(world: World, tmp_path: Path) -> None:
    await leave(world, tmp_path / "executor", {"job-output.txt": LOG, "b.txt": b"b" * 5_000})
    await world.store.put(f"{world.build}/job-output.txt", pieces(b"no gzip"), kind="text/plain")
    assert (await world.get("job-output.txt")).status_code == 503
    await world.store.delete([f"{world.build}/job-output.txt"])
    assert (await world.get("job-output.txt")).status_code == 404
    assert (await world.get("b.txt")).content == b"b" * 5_000
    stored = await world.get("b.txt", accept_encoding="gzip")
    assert stored.content == b"b" * 5_000 and gzip.compress(b"") != stored.content
    for name in ("../b.txt", "..%2f..%2f_builds%2fx", "%2e%2e/x", "b.txt/x", "none"):
        assert (await world.get(name)).status_code in (404, 400), name
