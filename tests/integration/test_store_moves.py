"""Test that the complete tree moves unchanged from one kind of store to another; bad files lose nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.adapters.sql.history import SqlHistory
from headgate.base.errors import UserError
from headgate.cli.store.store import command
from headgate.cli.store.urls import open_url
from headgate.map.places import Map
from headgate.ports.history import HistoryQuery, PastBuild
from headgate.store.types import Append, Entry, Put
from headgate.testing.servers.databases import ZooKeeper, chroot

QUEUE = Map().history.queue.path
KEY = "/keystorage/local/x"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


async def fill(url: str) -> None:
    backend = await open_url(url)
    lease = await backend.grant(30)
    await backend.commit([], [Append(QUEUE, b'{"data":"first"}'), Put("/zuul/b", b"\xff\x00"), Put(KEY, b"{}")])
    await backend.commit([], [Put("/zuul/a", "ü~".encode()), Append(QUEUE, b'{"data":"second"}')])
    await backend.commit([], [Put(f"/zuul/many/{n}", b"x" * 9_000) for n in range(99)])
    await backend.commit([], [Put("/zuul/mine", b"", lease)])
    await backend.revoke(lease)
    await backend.close()


async def tree(url: str) -> list[tuple[str, bytes]]:
    """List entries in order of creation; numbered ones without their number."""
    backend = await open_url(url)
    entries = await backend.list("")
    await backend.close()
    return [(e.path[:-10] if e.path.startswith(f"{QUEUE}/") else e.path, e.value) for e in entries]


def sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def full(tmp_path: Path) -> str:
    url = sqlite(tmp_path / "full")
    asyncio.run(fill(url))
    return url


def test_an_export_is_not_read_from_a_pipe(full: str, tmp_path: Path) -> None:
    """It is read several times: from a pipe, the history would be missing without a word."""
    assert run("export", "--store", full, tmp_path / "out").exit_code == 0
    end, begin = os.pipe()
    with os.fdopen(begin, "wb", buffering=0) as pipe:
        pipe.write((tmp_path / "out").read_bytes()[:60_000])
    result = run("import", "--store", sqlite(tmp_path / "new"), f"/dev/fd/{end}")
    os.close(end)
    assert isinstance(result.exception, UserError) and "this is a pipe" in str(result.exception)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("linked", [False, True])
def test_an_export_is_its_owner_s_alone_whatever_an_interrupted_one_left(
    full: str, tmp_path: Path, linked: bool
) -> None:
    file, left, elsewhere = tmp_path / "export", tmp_path / "export.part", tmp_path / "elsewhere"
    if linked:
        left.symlink_to(elsewhere)
    else:
        left.write_bytes(b"half of it")
        left.chmod(0o666)
    before = sorted(tmp_path.glob("export*"))
    assert run("export", "--store", full, file).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600 and not file.is_symlink()
    assert sorted(tmp_path.glob("export*")) == sorted([*before, file]) and not elsewhere.exists()
    assert linked or left.read_bytes() == b"half of it"


@pytest.mark.long
def test_from_a_file_to_zookeeper_and_back(tmp_path: Path, full: str, zookeeper_server: ZooKeeper) -> None:
    far = f"zookeeper://127.0.0.1:{zookeeper_server.port}{asyncio.run(chroot(zookeeper_server))}"
    near = sqlite(tmp_path / "near")
    for source, target in ((full, far), (far, near)):
        file = tmp_path / f"export-of-{len(source)}"
        assert run("export", "--store", source, file).output == f"{file}: 104 entries\n"
        assert run("import", "--store", target, file).output == "104 entries imported\n"
        assert asyncio.run(tree(target)) == asyncio.run(tree(full))

    async def next_one(url: str) -> list[Entry]:
        backend = await open_url(url)
        await backend.commit([], [Append(QUEUE, b'{"data":"third"}')])
        listed = list(await backend.list(QUEUE))
        await backend.close()
        return listed

    for url in (far, near):
        listed = asyncio.run(next_one(url))
        assert [e.path for e in listed] == sorted(e.path for e in listed) and len(listed) == 3
        assert listed[-1].value == b'{"data":"third"}'


def test_an_incomplete_or_foreign_file_is_refused(tmp_path: Path, full: str) -> None:
    file, empty = tmp_path / "export", sqlite(tmp_path / "empty")
    run("export", "--store", full, file)
    lines = file.read_bytes().splitlines(keepends=True)
    for damage, message in (
        (lines[:-1], "truncated after line 105"),
        ([*lines[:3], lines[3][:20]], ":4: not a line of a Headgate export"),
        (lines[1:], ":1: not a line of a Headgate export"),
        ([*lines, lines[1]], "there are lines after the last line"),
        ([b'{"headgate_export":99}\n', *lines[1:]], "newer Headgate"),
        ([], "truncated after line 0"),
    ):
        file.write_bytes(b"".join(damage))
        result = run("import", "--store", empty, file)
        assert isinstance(result.exception, UserError) and message in str(result.exception)
    assert asyncio.run(tree(empty)) == []


def test_nothing_is_written_over(tmp_path: Path, full: str) -> None:
    file, before = tmp_path / "export", asyncio.run(tree(full))
    run("export", "--store", full, file)
    again = run("export", "--store", full, file)
    assert isinstance(again.exception, UserError) and "exists" in str(again.exception)
    into = run("import", "--store", full, file)
    assert isinstance(into.exception, UserError) and "not empty" in str(into.exception)
    assert asyncio.run(tree(full)) == before


def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    refused = run("export", "--store", full, tmp_path / "export")
    assert isinstance(refused.exception, UserError) and "No space left on device" in str(refused.exception)
    assert not list(tmp_path.glob("export*")), "nor a part of it, with the keys of projects"


def test_reset_keeps_the_keys_unless_requested_otherwise(full: str) -> None:
    assert run("reset", "--store", full, "--yes").output == "103 entries deleted\n"
    assert asyncio.run(tree(full)) == [(KEY, b"{}")]
    assert run("reset", "--store", full, "--keys", "--yes").output == "1 entries deleted\n"
    assert asyncio.run(tree(full)) == []


def test_reset_removes_nothing_that_is_not_ours(full: str) -> None:
    async def beside() -> None:
        backend = await open_url(full)
        await backend.commit([], [Put("/other/zuul/b", b"")])
        await backend.close()

    asyncio.run(beside())
    output = run("reset", "--store", full, "--keys", "--yes").output
    assert output == "not deleted, because not Headgate's: /other/zuul/b and 0 more\n104 entries deleted\n"
    assert asyncio.run(tree(full)) == [("/other/zuul/b", b"")]


def test_reset_asks_and_does_not_disturb_who_is_at_work(zookeeper_server: ZooKeeper) -> None:
    url = f"zookeeper://127.0.0.1:{zookeeper_server.port}{asyncio.run(chroot(zookeeper_server))}"

    async def body() -> None:
        backend = await open_url(url)
        lease = await backend.grant(30)
        await backend.commit([], [Put("/zuul/components/x", b"", lease), Put("/zuul/a", b"")])
        refused = await asyncio.to_thread(run, "reset", "--store", url, "--yes")
        assert isinstance(refused.exception, UserError) and "is using this store" in str(refused.exception)
        assert len(await backend.list("")) == 2
        await backend.revoke(lease)
        await backend.close()

    asyncio.run(body())
    assert run("reset", "--store", url).exit_code == 1
    assert run("reset", "--store", url, "--yes").output == "1 entries deleted\n"


STATE = Path(__file__).parents[1] / "releases" / "state-0.1.0.tar.xz"


def moved(old: Path, new: Path, file: Path) -> list[Result]:
    """Export what is in one directory, and import it into another."""
    new.mkdir()
    for name in ("headgate.conf", "tenants.yaml"):
        (new / name).write_text((old / name).read_text())
    return [
        run("export", "--config", old / "headgate.conf", file),
        run("import", "--config", new / "headgate.conf", file),
    ]


def builds_of(root: Path) -> list[PastBuild]:
    history = SqlHistory(f"sqlite:///{root}/state/history.sqlite")
    try:
        return asyncio.run(history.builds("example", HistoryQuery({})))
    finally:
        history.close()


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """Provide the state of a gate that was killed at work."""
    with tarfile.open(STATE) as packed:
        packed.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


def test_the_history_goes_along_so_that_links_of_builds_lead_on(tmp_path: Path, left_behind: Path) -> None:
    exported, imported = moved(left_behind, tmp_path / "new", tmp_path / "file")
    assert exported.exit_code == imported.exit_code == 0, (exported, imported)
    assert "4 history rows imported" in imported.output, "three buildsets, and a build"
    (build,) = builds_of(tmp_path / "new")
    assert (build.job_name, build.result) == ("unit", "SUCCESS") and build.log_url
    assert builds_of(left_behind) == [build]
    (tmp_path / "new" / "state" / "headgate.sqlite").unlink()
    again = run("import", "--config", tmp_path / "new" / "headgate.conf", tmp_path / "file")
    assert "history not imported" in again.output and builds_of(tmp_path / "new") == [build]


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ('{"history":"build","row":{"uuid":"x","table":"y","no":1}}', 0, "5 history rows"),
        ('{"history":"sqlite_master","row":{"name":"build"}}', 0, "4 history rows"),
        ('{"history":"build","row":{"uuid":{"a":1}}}', 1, "but not the history"),
        ('{"history":"build","row":[]}', 1, "not a line of a Headgate export"),
        ('{"history":"build","row":{"uuid":"x","number":9223372036854775807}}', 1, "build is not from Headgate: x: "),
        ('{"history":"build","row":{"uuid":"x","end_ms":99999999999999999}}', 1, "$.end_ms"),
        ('{"history":"build","row":{"uuid":"x","artifacts":"y"}}', 1, "$.artifacts"),
        ('{"history":"build","row":{"uuid":"x","comments":{"a":[{"message":"m","level":"\\u001b[2J"}]}}}', 1, "level"),
        ('{"history":"buildset","row":{"uuid":"x","tenant":"example","pipeline":"gate","ref":"y"}}', 1, "`project`"),
    ],
)
def test_rows_that_somebody_else_wrote_harm_nothing(
    tmp_path: Path, left_behind: Path, line: str, status: int, message: str
) -> None:
    run("export", "--config", left_behind / "headgate.conf", tmp_path / "file")
    *lines, tail = (tmp_path / "file").read_text().splitlines()
    spoilt = "\n".join([*lines, line, tail.replace('"rows":4', '"rows":5')]) + "\n"
    (tmp_path / "spoilt").write_text(spoilt)
    (left_behind / "state" / "headgate.sqlite").unlink()
    (left_behind / "state" / "history.sqlite").unlink()
    for more in (left_behind / "state").glob("*.sqlite-*"):
        more.unlink()
    result = run("import", "--config", left_behind / "headgate.conf", tmp_path / "spoilt")
    assert result.exit_code == status and message in (text := f"{result.output} {result.exception}"), text
    assert "\x1b" not in text
    assert status == 0 or builds_of(left_behind) == []
