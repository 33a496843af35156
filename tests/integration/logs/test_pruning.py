"""Test that only old data is pruned: by age, by size, artifacts before logs, in the history as well."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from headgate.adapters.logs.bucket import LogBucket
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.reader import StoredLogs
from headgate.adapters.logs.retention import DAY_MS, RetentionPolicy, StoredBuild, chosen, prune
from headgate.adapters.logs.upload import Uploads
from headgate.adapters.sql.history import SqlHistory
from headgate.cli.launch.retention import command
from headgate.map.places import Map
from headgate.map.records import FinishedBuild
from headgate.ports.history import HistoryQuery
from headgate.ports.logstore import LogStore
from headgate.store.sqlite import SqliteBackend
from headgate.store.types import Put
from headgate.testing.logstores import bucket, keys, pieces
from tests.unit.adapters_sql.test_history import ENDED

NOW_MS = 100 * DAY_MS


def held(age_days: float, size: int, artifacts: int = 0) -> StoredBuild:
    return StoredBuild(
        int(NOW_MS - age_days * DAY_MS), 0, ["log"], ["a"] * bool(artifacts), size + artifacts, artifacts
    )


@pytest.mark.parametrize(
    ("policy", "gone", "lesser"),
    [
        (RetentionPolicy(), [], []),
        (RetentionPolicy(days=5), ["old", "older"], []),
        (RetentionPolicy(days=5, artifacts_days=2), ["old", "older"], ["some"]),
        (RetentionPolicy(artifacts_days=2), [], ["old", "some"]),
        (RetentionPolicy(size_max_bytes=1_000), [], []),
        (RetentionPolicy(size_max_bytes=999), ["older"], []),
        (RetentionPolicy(size_max_bytes=699), ["older", "old"], []),
        (RetentionPolicy(size_max_bytes=1), ["older", "old", "some"], []),
        (RetentionPolicy(days=9, size_max_bytes=750), ["older"], []),
    ],
)
def test_the_oldest_logs_are_removed_first_and_those_of_running_and_recent_builds_stay(
    policy: RetentionPolicy, gone: list[str], lesser: list[str]
) -> None:
    every = {
        "fresh": held(0.01, 100), "some": held(3, 100, 100), "old": held(7, 50, 200), "older": held(30, 300),
        "runs": held(90, 150),
    }  # fmt: skip
    assert sum(one.size_bytes for one in every.values()) == 1_000
    found = chosen(every, policy, NOW_MS, lambda build: build == "runs")
    assert (sorted(found[0]), sorted(found[1])) == (sorted(gone), sorted(lesser))
    assert found[0] == sorted(found[0], key=lambda build: every[build].at_ms)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["directory", "bucket"])
async def test_builds_and_artifacts_go_from_a_store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store: LogStore = LogDirectory(tmp_path / "kept")
    if kind == "bucket":
        store = LogBucket(bucket(request.getfixturevalue("s3_server"), f"b{uuid.uuid4().hex}"))
    uploads = Uploads(LocalLogs(tmp_path / "logs"), store, lambda: 1, host="e", interval_s=3_600)
    for build in ("b1", "b2"):
        async with uploads.following(build):
            for name in ("job-output.txt", "job-output.json", "zuul-info/inventory.yaml", "report/a.html", "b.bin"):
                path = tmp_path / "logs" / build / name
                await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
                await asyncio.to_thread(path.write_text, "12345")
    await uploads.close()
    await store.put("_parts/b3/00000", pieces(b"of one that died"), kind="text/plain")
    await store.put("something/else/of/the/operator's", pieces(b"1"), kind="text/plain")
    before = set(await keys(store))
    later_ms = int(time.time() * 1000) + 10 * DAY_MS

    policy = RetentionPolicy(days=20, artifacts_days=5)
    pruned = await prune(store, policy, later_ms, lambda build: build == "b2", dry=True)
    assert (pruned.builds, pruned.files) == ([], 2) and set(await keys(store)) == before
    assert pruned.size_bytes == 10 or kind == "bucket"  # where they are compressed
    assert await prune(store, policy, later_ms, lambda build: build == "b2") == pruned
    assert before - set(await keys(store)) == {"b1/report/a.html", "b1/b.bin"}
    manifest = await StoredLogs(store).of("b1")
    assert manifest is not None and manifest.complete and manifest.file("b.bin") is None
    assert manifest.file("job-output.txt") is not None and manifest.lost == ("2 artifacts were removed after 5 days",)
    assert (await prune(store, policy, later_ms, lambda build: build == "b2")).files == 0

    much_later_ms = later_ms + 20 * DAY_MS
    done = await prune(store, policy, much_later_ms, lambda build: build == "b2")
    assert sorted(done.builds) == ["b1", "b3"]
    left = set(await keys(store))
    assert left == {key for key in before if "b2" in key} | {"something/else/of/the/operator's"}


async def test_old_buildsets_are_removed_from_the_history(tmp_path: Path) -> None:
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    for number in range(1, 6):
        built = FinishedBuild(uuid=f"b{number}", job_name="unit", result="SUCCESS", start_ms=1, end_ms=2)
        result = "" if number == 2 else "SUCCESS"  # the second one goes on
        ended = replace(ENDED, buildset=f"s{number}", ended_ms=number * 1_000, builds=(built,), result=result)
        await history.record(ended)
    tenant = ENDED.tenant

    async def left() -> set[str]:
        return {build.uuid for build in await history.builds(tenant, HistoryQuery())}

    assert await history.forget(4_000, dry=True) == 2 and await left() == {"b1", "b2", "b3", "b4", "b5"}
    assert await history.forget(4_000) == 2 and await left() == {"b2", "b4", "b5"}
    assert await history.buildset(tenant, "s1") is None and await history.buildset(tenant, "s4") is not None
    last = max(build.id for build in await history.builds(tenant, HistoryQuery()))
    assert await history.forget(10_000_000) == 1 and await left() == {"b2", "b5"}
    built = FinishedBuild(uuid="b6", job_name="unit", result="SUCCESS", start_ms=1, end_ms=2)
    await history.record(replace(ENDED, buildset="s6", ended_ms=9_000, builds=(built,)))
    (newest,) = [build.id for build in await history.builds(tenant, HistoryQuery()) if build.uuid == "b6"]
    assert newest == last + 1, "numbers are not given twice"
    history.close()


def test_the_command_lists_and_removes_old_logs_of_this_machine(tmp_path: Path) -> None:
    logs, settings = tmp_path / "state/logs", tmp_path / "headgate.conf"
    settings.write_text("[connection local]\nbaseurl = hub\ncanonical_hostname = git.example\n")
    old_s = time.time() - 40 * 86_400
    for build, at_s in (("old", old_s), ("runs", old_s), ("young", time.time() - 7_200)):
        (logs / build / "deep").mkdir(parents=True)
        for name in ("job-output.txt", "deep/artifact", "odd\\name"):
            (logs / build / name).write_text("12345")
            os.utime(logs / build / name, (at_s, at_s))

    async def request() -> None:
        backend = await SqliteBackend.open(str(tmp_path / "state/headgate.sqlite"))
        await backend.commit([], [Put(f"{Map().executor.path}/unzoned/requests/runs", b"{}")])
        await backend.close()

    asyncio.run(request())
    (tmp_path / "state/headgate.sqlite").chmod(0o600)

    def output_of(*words: str) -> str:
        found = CliRunner().invoke(command, ["--config", str(settings), *words], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    assert "because the settings have no limits" in output_of()
    settings.write_text(settings.read_text() + "[logs]\nkeep_days = 30\nartifacts_keep_days = 0\n")
    assert output_of("--dry-run").splitlines()[0] == "logs of build old"
    assert {path.name for path in logs.iterdir()} == {"old", "runs", "young"}
    assert output_of().startswith("the logs of 1 builds and 0 other artifacts, 10 bytes, and")
    assert {path.name for path in logs.iterdir()} == {"runs", "young"}
