"""Carry builds over a reset of their item, and compute when these, or comments, are due.

A build of a job with `reuse` may have the same inputs on the new base, which is known once that base is merged and its
jobs are frozen.  Then the build either becomes the build of its job, or it is cancelled. Only the digest of
`gate.builds.reuse` decides this, and only within one item, so that patchset, pipeline and tenant are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.gate.builds.graph import parents
from headgate.gate.state.actions import Action, Cancel, Run
from headgate.gate.state.model import Build, BuildSet, Carried, Item, Phase, State
from headgate.gate.state.works import BuildOutcome
from headgate.gate.state.world import World

CARRIED_MAX_MS = 300_000
"""Time after which a carried build is cancelled if its job's inputs on the new base are still unknown, even if that
base has changed in the meantime."""
CARRIED_MAX = 40
"""Limit on the builds of an item that are carried over a reset, as one commit must be able to cancel them all; the
others are cancelled immediately."""
DATA_MAX_BYTES = 2_000
"""Size limit of the data of a build that ends before it is decided whether it counts, as the item's record contains the
data."""


@dataclass(slots=True)
class Match:
    """Find the carried builds with which the jobs of an item continue."""

    item: Item
    other: set[str] = field(default_factory=set)
    """Ids of builds that do not continue for a job that is not decided yet."""

    def of(self, fresh: Build) -> Build | None:
        """Return the carried build that continues instead of `fresh`, which is not requested yet; None: there is
        none."""
        for one in self.item.carried:
            if one.build.job == fresh.job and fresh.inputs and one.build.inputs == fresh.inputs:
                return replace(one.build, voting=fresh.voting, given=fresh.given, work=fresh.work)
        return None

    def rule_out(self, job: str) -> None:
        """Record that the job has different inputs now, so that no carried build continues for it."""
        self.other.update(one.build.id for one in self.item.carried if one.build.job == job)

    def give_way(self, waits: Collection[str]) -> None:
        """Give up the builds that hold a place in one of these semaphores, for which jobs wait on which their own
        inputs may depend: otherwise each would wait for the other."""
        self.other.update(one.build.id for one in self.item.carried if not set(one.semaphores).isdisjoint(waits))


def reset(item: Item, world: World, actions: list[Action]) -> Item:
    """Return the item without a base. Builds that may have the same inputs on another base continue; the others are
    cancelled."""
    buildset = item.buildset
    if buildset is not None and buildset.merge is Phase.RUNNING:
        actions.append(Cancel(derived(buildset.id, "merge"), build=False))
    # Builds that are carried already keep their time: otherwise, an item that is reset over and over would use machines
    # without limit.
    known = {one.build.id: one for one in item.carried}
    if buildset is not None:
        # Builds that this turn has just requested do not run yet: they are cancelled, not carried.
        unasked = {action.id for action in actions if isinstance(action, Run)}
        known = {**known, **{one.build.id: one for one in _going_on(buildset, world) if one.build.id not in unasked}}
    # Builds that have been carried longest come first and stay.
    retained = dict(list(known.items())[:CARRIED_MAX])
    actions.extend(Cancel(build.id, build=True) for build in item.under_way if build.id not in retained)
    earlier = dict(item.earlier)
    if buildset is not None and buildset.state is not None:
        # A copy does not keep the graph and the builds, which the original remembers.
        earlier[buildset.id] = replace(buildset.state)
    return _pruned(replace(item, buildset=None, carried=tuple(retained.values()), earlier=earlier))


def _going_on(buildset: BuildSet, world: World) -> Iterator[Carried]:
    """Yield the builds that may continue. A paused build may not, as other builds have used its services."""
    jobs = buildset.graph.by_id if buildset.graph is not None else {}
    for build in buildset.builds.values():
        if build.result is None and build.inputs and not build.paused and build.job in jobs:
            job = jobs[build.job]
            yield Carried(
                # Artifacts of the old base are dropped; `Match.of` adds those of the new one.
                replace(build, given=(), origin=build.origin or buildset.id),
                name=job.name,
                nodeset=job.nodeset.name,
                provides=job.provides,
                semaphores=job.semaphores_first,
                since_ms=world.now_ms,
            )


def settled(item: Item, match: Match | None, world: World, actions: list[Action]) -> Item:
    """Return the item with only those carried builds that may still count; cancel the others."""
    if not item.carried:
        return item if item.origins == item.earlier.keys() else _pruned(item)
    own = {build.id for build in item.buildset.builds.values()} if item.buildset is not None else set[str]()
    left = [one for one in item.carried if one.build.id not in own]
    other = match.other if match is not None else ()
    retained = tuple(one for one in left if one.build.id not in other and _may_count(one, item.buildset, world))
    gone = [one.build for one in left if one not in retained]
    actions.extend(Cancel(build.id, build=True) for build in gone if build.result is None)
    return _pruned(item if retained == item.carried else replace(item, carried=retained))


def _may_count(carried: Carried, buildset: BuildSet | None, world: World) -> bool:
    if buildset is None or world.now_ms >= carried.since_ms + CARRIED_MAX_MS:
        return False
    if buildset.merge in (Phase.CONFLICT, Phase.BLOCKED) or buildset.config_errors:
        return False
    if buildset.graph is None:
        return True
    job = buildset.graph.by_id.get(carried.build.job)
    # The new graph lacks the job, or another build already counts for it.
    if job is None or job.id in buildset.builds:
        return False
    # Data of the jobs before is part of the inputs. If one of them runs again, waiting for it would take too long.
    before = (buildset.builds.get(name) for name in parents(buildset, job))
    return not any(build is not None and build.result is None and not build.paused for build in before)


def _pruned(item: Item) -> Item:
    """Return the item without the repository states that none of its builds uses any more."""
    origins = item.origins
    if item.earlier.keys() <= origins:
        return item
    return replace(item, earlier={id: state for id, state in item.earlier.items() if id in origins})


# --- reports of executors


def carried(item: Item, build: str) -> Carried | None:
    """Return the carried build with this id if it is running."""
    return next((one for one in item.carried if one.build.id == build and one.build.result is None), None)


def changed(item: Item, build: str, **of: Any) -> Item:  # fields of Build
    """Return the item with these fields of a carried build changed."""
    found = (replace(o, build=replace(o.build, **of)) if o.build.id == build else o for o in item.carried)
    return _pruned(replace(item, carried=tuple(found)))


def dropped(item: Item, build: str) -> Item:
    """Return the item without a carried build, which no longer counts."""
    return _pruned(replace(item, carried=tuple(one for one in item.carried if one.build.id != build)))


def is_trusted(outcome: BuildOutcome) -> bool:
    """Return whether the outcome of a build is valid on another base: its executor must confirm that the build had
    access to nothing but its inputs. A cancellation is always valid."""
    return outcome.narrow or outcome.result == "CANCELED"


def is_short(outcome: BuildOutcome) -> bool:
    """Return whether the data of a build can be stored in its item until it is decided whether the build counts."""
    return outcome.secret is None and len(msgspec.json.encode(outcome.data)) <= DATA_MAX_BYTES


def left_ms(state: State, now_ms: int) -> int | None:
    """Return the milliseconds until a comment is due or a carried build must be cancelled, at most 0 if that is
    overdue; None: nothing is scheduled."""
    comments_due_ms = (one.due_ms for one in state.refusals if one.due_ms)
    carried_due_ms = (one.since_ms + CARRIED_MAX_MS for _, item in state.items() for one in item.carried)
    return min((due_ms - now_ms for due_ms in (*comments_due_ms, *carried_due_ms)), default=None)


def is_due(state: State, now_ms: int) -> bool:
    """Return whether a comment is due now, or a carried build must be cancelled."""
    left = left_ms(state, now_ms)
    return left is not None and left <= 0
