"""The whole tree goes from one kind of store to another and is what it was; bad files lose nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.base.errors import UserError
from headgate.cli.store.command import command
from headgate.cli.store.urls import open_url
from headgate.map.places import Map
from headgate.store.types import Append, Entry, Put
from headgate.testing.servers.zookeeper import ZooKeeper, chroot

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
    """In the order of birth; numbered ones without their number."""
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


def test_a_file_that_is_not_whole_or_not_ours_is_refused(tmp_path: Path, full: str) -> None:
    file, empty = tmp_path / "export", sqlite(tmp_path / "empty")
    run("export", "--store", full, file)
    lines = file.read_bytes().splitlines(keepends=True)
    for damage, message in (
        (lines[:-1], "cut short after line 105"),
        ([*lines[:3], lines[3][:20]], ":4: not a line of an export"),
        (lines[1:], ":1: not a line of an export"),
        ([*lines, lines[1]], "something follows"),
        ([b'{"headgate_export":99}\n', *lines[1:]], "newer Headgate"),
        ([], "cut short after line 0"),
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


def test_reset_keeps_the_keys_unless_told(full: str) -> None:
    assert run("reset", "--store", full, "--yes").output == "103 entries removed\n"
    assert asyncio.run(tree(full)) == [(KEY, b"{}")]
    assert run("reset", "--store", full, "--keys", "--yes").output == "1 entries removed\n"
    assert asyncio.run(tree(full)) == []


def test_reset_removes_nothing_that_is_not_ours(full: str) -> None:
    async def beside() -> None:
        backend = await open_url(full)
        await backend.commit([], [Put("/other/zuul/b", b"")])
        await backend.close()

    asyncio.run(beside())
    told = run("reset", "--store", full, "--keys", "--yes").output
    assert told == "left alone, for they are none of ours: /other/zuul/b and 0 more\n104 entries removed\n"
    assert asyncio.run(tree(full)) == [("/other/zuul/b", b"")]


def test_reset_asks_and_does_not_disturb_who_is_at_work(zookeeper_server: ZooKeeper) -> None:
    url = f"zookeeper://127.0.0.1:{zookeeper_server.port}{asyncio.run(chroot(zookeeper_server))}"

    async def body() -> None:
        backend = await open_url(url)
        lease = await backend.grant(30)
        await backend.commit([], [Put("/zuul/components/x", b"", lease), Put("/zuul/a", b"")])
        refused = await asyncio.to_thread(run, "reset", "--store", url, "--yes")
        assert isinstance(refused.exception, UserError) and "running here" in str(refused.exception)
        assert len(await backend.list("")) == 2
        await backend.revoke(lease)
        await backend.close()

    asyncio.run(body())
    assert run("reset", "--store", url).exit_code == 1
    assert run("reset", "--store", url, "--yes").output == "1 entries removed\n"
