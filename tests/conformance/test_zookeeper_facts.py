"""Test what a process forgets about ZooKeeper's nodes when it returns after writes of others, and the cost of that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headgate.store.zookeeper import nodes
from headgate.store.zookeeper.address import parse
from headgate.store.zookeeper.nodes import BIRTHS, BIRTHS_COUNT, Facts, birth_path
from headgate.store.zookeeper.wire.jute import Stat, ZooKeeperNodeRead

PATHS = [f"/q/{number}" for number in range(1_000)]


def node(version: int = 0) -> ZooKeeperNodeRead:
    return ZooKeeperNodeRead(b'{"headgate": 1}', Stat(1, 1, 0, 0, version, 0, 0, 0, 0, 0, 1))


async def claimed(monkeypatch: pytest.MonkeyPatch, facts: Facts, changed: int) -> None:
    """Connect again, after others have written so many of the counters."""

    async def read(link: object, chroot: str, paths: Sequence[str]) -> dict[str, ZooKeeperNodeRead | None]:
        new = {f"{BIRTHS}/{number:03d}" for number in range(changed)}
        return {path: node(version=2 if path in new else 1) for path in paths}

    monkeypatch.setattr(nodes, "read", read)
    await nodes.claim(None, parse("zookeeper://127.0.0.1/a"), facts)  # type: ignore[arg-type]  # it is never asked


@pytest.mark.parametrize("changed", [0, 1, BIRTHS_COUNT])
async def test_known_nodes_are_checked_once_however_much_others_wrote(
    monkeypatch: pytest.MonkeyPatch, changed: int
) -> None:
    facts, looked_at = Facts(), list[str]()
    await claimed(monkeypatch, facts, 0)
    for path in PATHS:
        facts.know(path, node(), 0.0)

    def counting(path: str) -> str:
        looked_at.append(path)
        return birth_path(path)

    monkeypatch.setattr(nodes, "birth_path", counting)
    await claimed(monkeypatch, facts, changed)
    of = {path: int(birth_path(path).removeprefix(f"{BIRTHS}/")) for path in PATHS}
    assert list(facts.nodes) == [path for path in PATHS if of[path] >= changed]
    assert len(looked_at) == (len(PATHS) if changed else 0)
