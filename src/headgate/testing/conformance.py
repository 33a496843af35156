"""Test what every backend must do, by examples: `class TestMine(Conformance)` with the fixtures `backend` and `gap`.

`headgate.testing.stores.machine` compares any backend with the model, whatever happens to both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest

from headgate.store import types
from headgate.store.store import Store, Txn
from headgate.testing.backends import UnsureBackend
from headgate.testing.clock import DEADLINE_S

T = TypeVar("T")
PATHS = ("/a", "/a/b", "/a/b/c", "/a-b", "/a.b", "/a0", "/ü/x")


async def first(watch: AsyncIterator[types.Change], count: int) -> list[types.Change]:
    """Return the next `count` changes of a watch."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(watch) for _ in range(count)]


Gap = Callable[[], Awaitable[None]]


class Conformance:
    """Test a backend. `backend` is empty; `gap()` makes the watches of `backend` miss what happens."""

    TTL_S = 0.05
    """Shortest lease that the backend accepts."""
    SEES_LEASED_PARENTS = True
    """Whether the backend refuses entries below one with a lease; callers must not rely on a backend that does not."""

    async def test_what_is_put_is_found(self, backend: types.Backend) -> None:
        (entry,) = await backend.commit([], [types.Put("/a/b", b"1")])
        assert await backend.get("/a/b") == entry
        assert await backend.get("/a") is None

    async def test_a_version_never_comes_back_after_delete_and_create(self, backend: types.Backend) -> None:
        (old,) = await backend.commit([], [types.Put("/a", b"1")])
        await backend.commit([], [types.Delete("/a")])
        (new,) = await backend.commit([], [types.Put("/a", b"1")])
        assert old is not None and new is not None
        assert old.version != new.version
        with pytest.raises(types.Conflict):
            await backend.commit([types.At("/a", old.version)], [types.Put("/a", b"2")])

    async def test_a_failed_check_writes_nothing(self, backend: types.Backend) -> None:
        with pytest.raises(types.Conflict) as caught:
            await backend.commit([types.At("/a", 5)], [types.Put("/b", b"1")])
        assert caught.value.check == types.At("/a", 5)
        assert await backend.get("/b") is None

    async def test_absence_can_be_checked(self, backend: types.Backend) -> None:
        await backend.commit([types.At("/a", None)], [types.Put("/a", b"1")])
        with pytest.raises(types.Conflict):
            await backend.commit([types.At("/a", None)], [types.Put("/a", b"2")])

    async def test_children_are_ordered_across_parents(self, backend: types.Backend) -> None:
        names = []
        for parent in ("/q/x", "/q/y", "/q/x", "/q/y"):
            (entry,) = await backend.commit([], [types.Append(parent, b"")])
            assert entry is not None
            names.append(entry.path)
        assert [entry.path for entry in await backend.list("/q")] == names

    async def test_a_number_is_not_used_again(self, backend: types.Backend) -> None:
        numbers = []
        for _ in range(3):
            (one,) = await backend.commit([], [types.Append("/q", b"", None, "p")])
            assert one is not None
            assert one.path.startswith("/q/p") and len(one.path) == len("/q/p") + 10
            numbers.append(int(one.path.removeprefix("/q/p")))
            await backend.commit([], [types.Delete(one.path), types.Delete("/q")])
        # Although the parent was deleted in between: ZooKeeper would begin at 0 again, and a late reader take one for
        # another.
        assert numbers == sorted(set(numbers))

    async def test_those_who_append_at_once_get_different_numbers(self, backend: types.Backend) -> None:
        await asyncio.gather(*(backend.commit([], [types.Append("/q", b"", None)]) for _ in range(20)))
        listed = [entry.path for entry in await backend.list("/q")]
        assert len(listed) == 20 and listed == sorted(listed)

    async def test_the_children_of_one_commit_are_in_its_order(self, backend: types.Backend) -> None:
        written = await backend.commit([], [types.Append("/q", str(n).encode()) for n in range(12)])
        assert [entry.value for entry in await backend.list("/q")] == [entry.value for entry in written if entry]

    async def test_a_list_of_the_root_has_the_entire_tree(self, backend: types.Backend) -> None:
        await backend.commit([], [types.Put(path, path.encode()) for path in PATHS])
        assert {entry.path for entry in await backend.list("")} == set(PATHS)

    async def test_a_place_can_be_put_and_deleted_above_others(self, backend: types.Backend) -> None:
        await backend.commit([], [types.Put("/a/b/c", b"deep")])
        await backend.commit([types.At("/a/b", None)], [types.Put("/a/b", b"")])
        assert {e.path: e.value for e in await backend.list("/a")} == {"/a/b": b"", "/a/b/c": b"deep"}
        await backend.commit([], [types.Delete("/a/b")])
        assert await backend.get("/a/b") is None
        await backend.commit([types.At("/a/b", None)], [types.Delete("/a/b/c")])
        assert not await backend.list("")

    async def test_a_subtree_ends_where_its_name_does(self, backend: types.Backend) -> None:
        await backend.commit([], [types.Put(path, b"") for path in PATHS])
        assert [e.path for e in await backend.list("/a")] == ["/a", "/a/b", "/a/b/c"]

    async def test_several_entries_are_read_at_once(self, backend: types.Backend) -> None:
        # More than one request may have.
        paths = [f"/many/{n}" for n in range(types.OPS_MAX + 20)]
        written = [await backend.commit([], [types.Put(path, b"x")]) for path in paths[::2]]
        found = await Store(backend).get_many(paths)
        assert list(found[::2]) == [entry for (entry,) in written] and set(found[1::2]) == {None}

    @pytest.mark.parametrize(
        ("begins", "after", "limit", "names"),
        [
            ("", "", 9, ["a", "a-b", "a.b", "a/b", "a/c", "ab", "b"]),
            ("", "", 2, ["a", "a-b"]),
            ("a", "a-b", 9, ["a.b", "a/b", "a/c", "ab"]),
            ("a/", "", 9, ["a/b", "a/c"]),
            ("ab", "a", 9, ["ab"]),
            ("a", "ac", 9, []),
            ("", "zz", 9, []),
        ],
    )
    async def test_a_scan_is_by_path(
        self, backend: types.Backend, begins: str, after: str, limit: int, names: list[str]
    ) -> None:
        found = ("b", "a", "a/b", "a-b", "a.b", "ab", "a/c")
        await backend.commit([], [types.Put(f"/s/{name}", b"") for name in found])
        await backend.commit([], [types.Put("/s", b""), types.Put("/s.x", b""), types.Put("/r/a", b"")])
        entries = await Store(backend).scan("/s", begins=begins, after=after, limit=limit)
        assert [entry.path.removeprefix("/s/") for entry in entries] == names

    async def test_deleting_what_is_not_there_is_no_error(self, backend: types.Backend) -> None:
        assert list(await backend.commit([], [types.Delete("/nothing")])) == [None]

    async def test_a_path_is_named_once(self, backend: types.Backend) -> None:
        with pytest.raises(ValueError, match="named twice"):
            await backend.commit([], [types.Put("/a", b""), types.Delete("/a")])

    @pytest.mark.parametrize("path", ["a", "/a/", "/a//b", "", "/a/../b", "/.", "/~mine", "/a/~x/b", "/a\nb"])
    async def test_a_wrong_path_is_refused(self, backend: types.Backend, path: str) -> None:
        with pytest.raises(ValueError, match="not a store path"):
            await backend.commit([], [types.Put(path, b"")])

    async def test_limits_hold_everywhere(self, backend: types.Backend) -> None:
        with pytest.raises(types.TooLarge):
            await backend.commit([], [types.Put(f"/{n}", b"") for n in range(types.OPS_MAX + 1)])
        with pytest.raises(types.TooLarge):
            await backend.commit([], [types.Put("/a", b"x" * types.COMMIT_SIZE_MAX_BYTES)])
        with pytest.raises(types.TooLarge):
            await backend.commit([], [types.Append(f"/{n}", b"") for n in range(types.PARENTS_MAX + 1)])
        assert not await backend.list("")

    async def test_a_commit_as_large_as_may_be_is_taken(self, backend: types.Backend) -> None:
        # Every path has parents of its own, which ZooKeeper has to create besides.
        paths = [f"/deep/{n:03d}/{'x' * 40}/{'y' * 40}" for n in range(types.OPS_MAX)]
        value = b"v" * (types.COMMIT_SIZE_MAX_BYTES // types.OPS_MAX - 2 * len(paths[0]))
        written = await backend.commit(
            [types.At(path, None) for path in paths], [types.Put(path, value) for path in paths]
        )
        checks = [types.At(entry.path, entry.version) for entry in written if entry]
        few = [types.Append(f"/q/{n}", value) for n in range(types.PARENTS_MAX)]
        await backend.commit(checks, [*few, *(types.Delete(path) for path in paths[types.PARENTS_MAX :])])
        assert len(await backend.list("/q")) == len(await backend.list("/deep")) == types.PARENTS_MAX

    async def test_a_watch_begins_with_a_snapshot_and_goes_on_in_order(self, backend: types.Backend) -> None:
        (old,) = await backend.commit([], [types.Put("/w/a", b"1")])
        watch = backend.watch("/w")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            assert await first(watch, 1) == [types.Snapshot((old,))] if old else False
            (new,) = await backend.commit([], [types.Put("/w/b", b"2")])
            await backend.commit([], [types.Put("/elsewhere", b"")])
            await backend.commit([], [types.Delete("/w/a")])
            assert new is not None
            assert await first(watch, 2) == [types.EntryChanged(new), types.EntryGone("/w/a")]

    async def test_entries_of_a_lease_go_with_it(self, backend: types.Backend) -> None:
        ttl_s, lease = self.TTL_S, None
        while lease is None:  # it may have ended before anybody looks
            ttl_s, lease = 2 * ttl_s, await self._ends(backend, ttl_s)
        assert await backend.get("/other") is not None
        with pytest.raises(types.SessionLost):
            await backend.keep_alive(lease)
        with pytest.raises(types.SessionLost):
            await backend.commit([], [types.Put("/mine", b"", lease)])

    async def _ends(self, backend: types.Backend, ttl_s: float) -> types.Lease | None:
        """Return a lease that ended together with its entries; None when it ended too soon."""
        lease = await backend.grant(ttl_s)
        try:
            await backend.commit([], [types.Put("/mine", b"", lease), types.Put("/other", b"")])
        except types.SessionLost:
            return None
        watch = backend.watch("/mine")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            if await first(watch, 1) == [types.Snapshot(())]:
                return None
            assert await first(watch, 1) == [types.EntryGone("/mine")]
        return lease

    async def test_a_revoked_lease_holds_nothing(self, backend: types.Backend) -> None:
        lease = await backend.grant(30)
        await backend.commit([], [types.Put("/mine", b"", lease)])
        await backend.revoke(lease)
        assert await backend.get("/mine") is None

    async def test_the_guard_of_one_who_lost_the_place_does_not_fit_the_next(self, backend: types.Backend) -> None:
        first_lease, second_lease = await backend.grant(30), await backend.grant(30)
        (mine,) = await backend.commit([types.At("/lock", None)], [types.Put("/lock", b"me", first_lease)])
        await backend.revoke(first_lease)
        await backend.commit([types.At("/lock", None)], [types.Put("/lock", b"me", second_lease)])
        assert mine is not None
        with pytest.raises(types.Conflict):
            await backend.commit([types.At("/lock", mine.version)], [types.Put("/a", b"late")])
        assert await backend.get("/a") is None
        await backend.revoke(second_lease)

    async def test_a_commit_is_under_one_lease(self, backend: types.Backend) -> None:
        one, two = await backend.grant(30), await backend.grant(30)
        with pytest.raises(ValueError, match="one lease"):
            await backend.commit([], [types.Put("/a", b"", one), types.Put("/b", b"", two)])
        await backend.revoke(one)
        await backend.revoke(two)

    async def test_nothing_lies_below_what_has_a_lease(self, backend: types.Backend) -> None:
        lease = await backend.grant(30)
        await backend.commit([], [types.Put("/mine", b"", lease), types.Put("/a/b", b"")])
        if self.SEES_LEASED_PARENTS:
            for op in (types.Put("/mine/below", b""), types.Append("/mine", b""), types.Put("/a", b"", lease)):
                with pytest.raises(ValueError, match="no entries below"):
                    await backend.commit([], [op])
        await backend.revoke(lease)
        assert [entry.path for entry in await backend.list("")] == ["/a/b"]

    async def test_a_lease_can_be_put_on_and_taken_off(self, backend: types.Backend) -> None:
        lease = await backend.grant(30)
        await backend.commit([], [types.Put("/off", b"1", lease), types.Put("/on", b"1")])
        off, on = await backend.commit([], [types.Put("/off", b"2"), types.Put("/on", b"2", lease)])
        assert off is not None and off.lease is None and on is not None and on.lease == lease
        await backend.revoke(lease)
        assert [entry.path for entry in await backend.list("")] == ["/off"]

    async def test_after_a_gap_a_watch_begins_again(self, backend: types.Backend, gap: Gap) -> None:
        await backend.commit([], [types.Put("/w/a", b"1"), types.Put("/w/b", b"1")])
        watch = backend.watch("/w")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            await first(watch, 1)
            await gap()
            await backend.commit([], [types.Put("/w/a", b"2"), types.Delete("/w/b"), types.Put("/w/c", b"1")])
            known = dict.fromkeys(("/w/a", "/w/b"), b"1")
            async with asyncio.timeout(DEADLINE_S):
                while known != {"/w/a": b"2", "/w/c": b"1"}:
                    match await anext(watch):
                        case types.Snapshot(entries):
                            known = {entry.path: entry.value for entry in entries}
                        case types.EntryChanged(entry):
                            known[entry.path] = entry.value
                        case types.EntryGone(path):
                            del known[path]

    async def test_a_watch_of_one_place_sees_it_come_and_go(self, backend: types.Backend) -> None:
        watch = backend.watch("/w/a")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            assert await first(watch, 1) == [types.Snapshot(())]
            (entry,) = await backend.commit([], [types.Put("/w/a", b"")])
            await backend.commit([], [types.Put("/w/ab", b"")])
            assert entry is not None and await first(watch, 1) == [types.EntryChanged(entry)]
            await backend.commit([], [types.Delete("/w/a")])
            assert await first(watch, 1) == [types.EntryGone("/w/a")]

    async def test_many_watches_on_one_place_do_not_end_each_other(self, backend: types.Backend) -> None:
        one, two = backend.watch("/w"), backend.watch("/w")
        async with aclosing(one):  # type: ignore[type-var]  # an async generator behind its protocol
            await first(one, 1)
            async with aclosing(two):  # type: ignore[type-var]  # a generator, too
                await first(two, 1)
            (entry,) = await backend.commit([], [types.Put("/w/x", b"")])
            assert entry is not None and await first(one, 1) == [types.EntryChanged(entry)]

    async def test_a_watch_begun_later_shows_what_was_committed_before(self, backend: types.Backend) -> None:
        lease = await backend.grant(30)
        around = backend.watch("")
        async with aclosing(around):  # type: ignore[type-var]  # an async generator behind its protocol
            await first(around, 1)
            for number in range(10):
                written = await backend.commit([], [types.Append(f"/line/{number}", b"", lease)])
                watch = backend.watch(f"/line/{number}")
                async with aclosing(watch):  # type: ignore[type-var]  # a generator, too
                    assert await first(watch, 1) == [types.Snapshot(tuple(entry for entry in written if entry))]
        await backend.revoke(lease)

    @pytest.mark.parametrize("fate", ["lost", "unanswered"])
    async def test_a_commit_of_unknown_outcome_is_not_repeated(self, backend: types.Backend, fate: str) -> None:
        unsure, runs = UnsureBackend(backend), 0

        async def body(txn: Txn) -> None:
            nonlocal runs
            runs += 1
            entry = await txn.get("/n")
            txn.put("/n", (entry.value if entry else b"") + b"x")

        unsure.next_commit = fate
        with pytest.raises(types.Unavailable):
            await Store(unsure).transact(body)
        entry = await backend.get("/n")
        assert runs == 1 and (entry.value if entry else b"") == (b"x" if fate == "unanswered" else b"")

    async def test_a_counter_under_contention_loses_nothing(self, backend: types.Backend) -> None:
        store = Store(backend)

        async def increment() -> None:
            async def body(txn: Txn) -> None:
                entry = await txn.get("/n")
                # Lets the others read the same value: without a conflict this would test nothing.
                await asyncio.sleep(0)
                txn.put("/n", str(int(entry.value if entry else b"0") + 1).encode())

            await store.transact(body)

        await asyncio.gather(*(increment() for _ in range(10)))
        entry = await backend.get("/n")
        assert entry is not None and entry.value == b"10"
