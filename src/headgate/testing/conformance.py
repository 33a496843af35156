"""What every backend must do, as a suite: `class TestMine(Conformance)` with a fixture `backend`, and a script player
that compares any backend with the model step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

import pytest
from hypothesis import strategies as st

from headgate.store.model import Model
from headgate.store.store import Store, Txn
from headgate.store.types import (
    COMMIT_SIZE_MAX_BYTES,
    OPS_MAX,
    Append,
    At,
    Backend,
    Change,
    Changed,
    Conflict,
    Delete,
    Entry,
    Gone,
    Op,
    Put,
    SessionLost,
    Snapshot,
    TooLarge,
)

T = TypeVar("T")
PATHS = ("/a", "/a/b", "/a/b/c", "/a-b", "/a.b", "/a0", "/ü/x")
DEADLINE_S = 10.0

Step = tuple[Sequence[str], Sequence[Op]]
"""Paths to check at their present version, and operations."""


def steps() -> st.SearchStrategy[list[Step]]:
    """Scripts of commits: checks that hold, operations on few paths so that they meet."""
    path, value = st.sampled_from(PATHS), st.binary(max_size=3)
    op = st.one_of(st.builds(Put, path, value), st.builds(Append, path, value), st.builds(Delete, path))
    ops = st.lists(op, max_size=4, unique_by=lambda o: (isinstance(o, Append), getattr(o, "path", id(o))))
    return st.lists(st.tuples(st.lists(path, max_size=2, unique=True), ops), max_size=12)


def shape(entries: Sequence[Entry], versions: dict[int, int]) -> list[tuple[str, bytes, int]]:
    """What two stores must agree on: paths, values, and the order of birth; numbers themselves are their own."""
    return [(entry.path, entry.value, versions.setdefault(entry.born, len(versions))) for entry in entries]


async def play(backend: Backend, script: Sequence[Step]) -> None:
    """Commits the script to the backend and to the model; raises AssertionError where they differ."""
    model, theirs, ours = Model(), dict[int, int](), dict[int, int]()
    seen: set[tuple[str, int]] = set()
    for checked, ops in script:
        found = {path: await backend.get(path) for path in checked}
        checks = [At(path, entry.version if entry else None) for path, entry in found.items()]
        known = [At(path, entry.version if (entry := model.entries.get(path)) else None) for path in checked]
        model, expected = model.commit(known, ops)
        written = await backend.commit(checks, ops)
        for one, other in zip(written, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert (one.path, one.value) == (other.path, other.value)
                assert (one.path, one.version) not in seen, "a version came back"
                seen.add((one.path, one.version))
        for path in PATHS:
            assert shape(await backend.list(path), theirs) == shape(model.under(path), ours), path


async def first(watch: AsyncIterator[Change], count: int) -> list[Change]:
    """The next `count` changes of a watch."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(watch) for _ in range(count)]


class Conformance:
    """Examples; `backend` is a fixture of the class that derives from this."""

    async def test_what_is_put_is_found(self, backend: Backend) -> None:
        (entry,) = await backend.commit([], [Put("/a/b", b"1")])
        assert await backend.get("/a/b") == entry
        assert await backend.get("/a") is None

    async def test_a_version_never_comes_back_after_delete_and_create(self, backend: Backend) -> None:
        (old,) = await backend.commit([], [Put("/a", b"1")])
        await backend.commit([], [Delete("/a")])
        (new,) = await backend.commit([], [Put("/a", b"1")])
        assert old is not None and new is not None
        assert old.version != new.version
        with pytest.raises(Conflict):
            await backend.commit([At("/a", old.version)], [Put("/a", b"2")])

    async def test_a_failed_check_writes_nothing(self, backend: Backend) -> None:
        with pytest.raises(Conflict) as caught:
            await backend.commit([At("/a", 5)], [Put("/b", b"1")])
        assert caught.value.check == At("/a", 5)
        assert await backend.get("/b") is None

    async def test_absence_can_be_checked(self, backend: Backend) -> None:
        await backend.commit([At("/a", None)], [Put("/a", b"1")])
        with pytest.raises(Conflict):
            await backend.commit([At("/a", None)], [Put("/a", b"2")])

    async def test_children_are_ordered_across_parents(self, backend: Backend) -> None:
        names = []
        for parent in ("/q/x", "/q/y", "/q/x", "/q/y"):
            (entry,) = await backend.commit([], [Append(parent, b"")])
            assert entry is not None
            names.append(entry.path)
        assert [entry.path for entry in await backend.list("/q")] == names

    async def test_a_number_is_not_used_again(self, backend: Backend) -> None:
        (one,) = await backend.commit([], [Append("/q", b"", None, "p")])
        assert one is not None and one.path == "/q/p0000000000"
        await backend.commit([], [Delete(one.path)])
        (two,) = await backend.commit([], [Append("/q", b"", None, "p")])
        assert two is not None and two.path == "/q/p0000000001"

    async def test_a_subtree_ends_where_its_name_does(self, backend: Backend) -> None:
        await backend.commit([], [Put(path, b"") for path in PATHS])
        assert [e.path for e in await backend.list("/a")] == ["/a", "/a/b", "/a/b/c"]

    async def test_deleting_what_is_not_there_is_no_error(self, backend: Backend) -> None:
        assert list(await backend.commit([], [Delete("/nothing")])) == [None]

    async def test_a_path_is_named_once(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="named twice"):
            await backend.commit([], [Put("/a", b""), Delete("/a")])

    @pytest.mark.parametrize("path", ["a", "/a/", "/a//b", ""])
    async def test_a_wrong_path_is_refused(self, backend: Backend, path: str) -> None:
        with pytest.raises(ValueError, match="not a store path"):
            await backend.commit([], [Put(path, b"")])

    async def test_limits_hold_everywhere(self, backend: Backend) -> None:
        with pytest.raises(TooLarge):
            await backend.commit([], [Put(f"/{n}", b"") for n in range(OPS_MAX + 1)])
        with pytest.raises(TooLarge):
            await backend.commit([], [Put("/a", b"x" * COMMIT_SIZE_MAX_BYTES)])

    async def test_a_watch_begins_with_a_snapshot_and_goes_on_in_order(self, backend: Backend) -> None:
        (old,) = await backend.commit([], [Put("/w/a", b"1")])
        watch = backend.watch("/w")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            assert await first(watch, 1) == [Snapshot((old,))] if old else False
            (new,) = await backend.commit([], [Put("/w/b", b"2")])
            await backend.commit([], [Put("/elsewhere", b"")])
            await backend.commit([], [Delete("/w/a")])
            assert new is not None
            assert await first(watch, 2) == [Changed(new), Gone("/w/a")]

    async def test_what_a_lease_holds_goes_with_it(self, backend: Backend) -> None:
        lease = await backend.grant(0.05)
        await backend.commit([], [Put("/mine", b"", lease), Put("/other", b"")])
        watch = backend.watch("/mine")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            changes = await first(watch, 2)
        assert changes[1] == Gone("/mine")
        assert await backend.get("/other") is not None
        with pytest.raises(SessionLost):
            await backend.keep_alive(lease)
        with pytest.raises(SessionLost):
            await backend.commit([], [Put("/mine", b"", lease)])

    async def test_a_revoked_lease_holds_nothing(self, backend: Backend) -> None:
        lease = await backend.grant(30)
        await backend.commit([], [Put("/mine", b"", lease)])
        await backend.revoke(lease)
        assert await backend.get("/mine") is None

    async def test_a_counter_under_contention_loses_nothing(self, backend: Backend) -> None:
        store = Store(backend)

        async def increment() -> None:
            async def body(txn: Txn) -> None:
                entry = await txn.get("/n")
                await asyncio.sleep(0)
                txn.put("/n", str(int(entry.value if entry else b"0") + 1).encode())

            await store.transact(body)

        await asyncio.gather(*(increment() for _ in range(10)))
        entry = await backend.get("/n")
        assert entry is not None and entry.value == b"10"
