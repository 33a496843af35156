"""Test which nodes the sweeper of ZooKeeper deletes, and when, while others use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headgate.store.zookeeper import nodes
from headgate.store.zookeeper.commits import Sweeper
from headgate.store.zookeeper.nodes import Facts
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.connection import ZooKeeperMultiResult
from headgate.store.zookeeper.wire.jute import Code, Stat, ZooKeeperNodeRead, ZooKeeperOperation
from headgate.testing.clock import run_virtual

WAIT_S = 600.0
NOT_TRIED = -2
"""The answer for the parts of a multi after the one at which it failed."""


class Nodes:
    """Imitate a server with empty nodes; `then` runs between the sweeper's read of them and its deletion."""

    def __init__(self, *paths: str) -> None:
        self.zxids = dict.fromkeys(paths, 1)
        self.then: Callable[[], object] = lambda: None
        self.gone_s: dict[str, float] = {}

    async def link(self) -> Nodes:
        return self

    async def read(self, link: object, chroot: str, paths: Sequence[str]) -> dict[str, Any]:
        found = {path: self._read(path) for path in paths}
        then, self.then = self.then, lambda: None
        then()
        return found

    def _read(self, path: str) -> ZooKeeperNodeRead | None:
        zxid = self.zxids.get(path)
        return ZooKeeperNodeRead(None, Stat(1, zxid, 0, 0, zxid, 0, 0, 0, 0, 0, 1)) if zxid is not None else None

    async def multi(self, kind: object, parts: Sequence[ZooKeeperOperation]) -> ZooKeeperMultiResult:
        wanted = {jute.delete(path, zxid).body: path for path, zxid in self.zxids.items()}
        bad = next((number for number, part in enumerate(parts) if part.body not in wanted), None)
        if bad is not None:
            after = len(parts) - bad - 1
            return ZooKeeperMultiResult(9, [*[Code.OK] * bad, Code.BAD_VERSION, *[NOT_TRIED] * after], 0)
        for part in parts:
            self.gone_s[wanted[part.body]] = asyncio.get_running_loop().time()
            del self.zxids[wanted[part.body]]
        return ZooKeeperMultiResult(9, [None] * len(parts), 0)


def swept(monkeypatch: pytest.MonkeyPatch, imitated: Nodes, begin: Callable[[Sweeper], None]) -> dict[str, float]:
    """Return when which node was deleted, within three times that the sweeper waits."""

    async def run() -> None:
        sweeper = Sweeper("", Facts(), imitated, WAIT_S)  # type: ignore[arg-type]  # all that it uses of a session
        sweeper.later(imitated.zxids.items())
        sweeper.start()
        begin(sweeper)
        await asyncio.sleep(3 * WAIT_S)
        await sweeper.stop()

    monkeypatch.setattr(nodes, "read", imitated.read)
    run_virtual(run())
    return imitated.gone_s


def test_a_node_that_is_used_again_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    imitated = Nodes("/a", "/b", "/c")

    def used(sweeper: Sweeper) -> None:
        imitated.then = lambda: imitated.zxids.update({"/b": 5})

    assert swept(monkeypatch, imitated, used).keys() == {"/a", "/c"} and imitated.zxids == {"/b": 5}


def test_a_node_that_is_emptied_again_waits_its_full_time(monkeypatch: pytest.MonkeyPatch) -> None:
    imitated, emptied_s = Nodes("/a"), list[float]()

    def used(sweeper: Sweeper) -> None:
        def emptied() -> None:
            imitated.zxids["/a"] = 5
            sweeper.later([("/a", 5)])
            emptied_s.append(asyncio.get_running_loop().time())

        imitated.then = emptied

    assert swept(monkeypatch, imitated, used)["/a"] >= emptied_s[0] + WAIT_S
