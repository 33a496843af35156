"""Test that a scan of ZooKeeper's nodes equals a sorted list, and reads no more of them than necessary."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from headgate.store.types import Entry
from headgate.store.zookeeper import nodes
from headgate.store.zookeeper.nodes import Scan

NAMES = ("a", "b", "a-b", "a.b", "ab", "A", "é", "a0", "-", "...x", "z")


class Nodes:
    """Imitate the nodes of entries at some paths in `/d`; `read` lists those that were read."""

    def __init__(self, paths: Sequence[str], chance: random.Random) -> None:
        self._paths, self._chance, self.read = set(paths), chance, 0
        self._below: dict[str, set[str]] = {}
        for path in paths:
            while path:
                above = path.rpartition("/")[0]
                self._below.setdefault(above, set()).add(path)
                path = above

    async def read_with_children(self, link: object, chroot: str, paths: Sequence[str]) -> dict[str, Any]:
        self.read += len(paths)
        return {path: self._node(path) for path in paths}

    def _node(self, path: str) -> tuple[str | None, list[str]]:
        name = path.removeprefix("/d").removeprefix("/")
        below = sorted(self._below.get(name, ()))
        self._chance.shuffle(below)
        return (path if name in self._paths else None), [f"/d/{one}" for one in below]


def scanned(monkeypatch: pytest.MonkeyPatch, imitated: Nodes) -> None:
    monkeypatch.setattr(nodes, "read_with_children", imitated.read_with_children)
    monkeypatch.setattr(nodes, "entry_of", lambda path, node: Entry(path, b"", 1, 1) if node else None)


async def first(begins: str, after: str, limit: int) -> list[str]:
    found = await Scan(None, "", "/d", begins=begins, after=after).first(limit)  # type: ignore[arg-type]  # it is never asked
    return [entry.path.removeprefix("/d/") for entry in found]


@pytest.mark.parametrize("seed", range(8))
async def test_a_scan_equals_a_part_of_the_sorted_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        some = range(chance.randrange(1, 25))
        paths = sorted({"/".join(chance.choices(NAMES, k=chance.randrange(1, 4))) for _ in some})
        scanned(monkeypatch, Nodes(paths, chance))
        monkeypatch.setattr(nodes, "AHEAD_MAX", chance.choice([1, 2, 200]))
        begins = chance.choice(["", "", chance.choice(paths), chance.choice(paths)[:2], "a/", "a-"])
        after = chance.choice(["", chance.choice(paths), "a", "a/", "ab/zz", "b"])
        limit = chance.choice([1, 2, 5, 100])
        wanted = [path for path in paths if path.startswith(begins) and path > after][:limit]
        assert await first(begins, after, limit) == wanted, (paths, begins, after, limit)


async def test_scans_read_only_the_requested_part(monkeypatch: pytest.MonkeyPatch) -> None:
    imitated = Nodes([f"name-{n:05}" for n in range(20_000)], random.Random(1))
    scanned(monkeypatch, imitated)
    assert await first("", "name-12344", 3) == ["name-12345", "name-12346", "name-12347"]
    assert imitated.read < 20
