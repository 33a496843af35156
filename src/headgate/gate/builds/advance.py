"""Freeze the jobs of an item once it is merged, start them as dependencies and semaphores permit, skip the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.dynamic import Judgement, LayoutRequest
from headgate.config.model import ConfigError, FrozenJob
from headgate.gate.builds import graph
from headgate.gate.builds.carry import Match, settled
from headgate.gate.builds.imagework import of_images
from headgate.gate.builds.provisions import Provisions, Required
from headgate.gate.builds.report import filled
from headgate.gate.builds.reuse import NOTHING, reused, stands_for
from headgate.gate.builds.start import Base, begun, run
from headgate.gate.state.actions import Action, Cancel, Report, Resume
from headgate.gate.state.change import Change
from headgate.gate.state.model import FAIL_FAST, Build, BuildSet, Item, State
from headgate.gate.state.works import ReportRequest
from headgate.gate.state.world import Waiter, World

ERRORS_MAX = 100
"""Limit on the configuration errors that an item lists."""


@dataclass(slots=True)
class Permits:
    """Track what builds may use in one turn: the free places of semaphores, and the results of other builds."""

    taken: Counter[str]
    world: World
    live: Mapping[str, Item]
    """Change key -> the live item with the change, as of the beginning of the turn."""
    tickets: dict[str, Waiter]
    """Project of this pipeline that waits for a place -> its ticket, which it loses when it takes a place."""

    @classmethod
    def of(cls, state: State, world: World, actions: Sequence[Action]) -> Permits:
        """Return the permits of a turn with these actions so far."""
        taken = Counter(dict(world.held))
        # `held` has the places that other pipelines hold; those of this pipeline are counted from the state.
        held = taken_by(state)
        taken.update(name for names in held.values() for name in names)
        # A cancelled build holds its places until its executor has stopped it, so they are not free in this turn.
        cancelled = {action.id for action in actions if isinstance(action, Cancel) and action.build}
        taken.update(name for id in cancelled - held.keys() for name in world.taken_by.get(id, ()))
        live = {key: item for _, item in state.items() if item.live for key in item.keys}
        own = (world.tenant, world.pipeline.name)
        waiters = (waiter for line in world.waiters.values() for waiter in line)
        return cls(taken, world, live, {w.project: w for w in waiters if (w.tenant, w.pipeline) == own})

    def twin(self, item: Item) -> Item | None:
        """Return the live item with the same patchset: `item` itself or, if it is only a dependency here, an item of
        another queue; None: there is none."""
        found = item if item.live else self.live.get(item.change.key)
        known = found.of(item.change.key) if found is not None else None
        return found if known is not None and known.commit == item.change.commit else None

    def take(self, job: FrozenJob, project: str) -> bool:
        """Take places of all semaphores of the job, or of none; reserve places for projects that have waited longer.

        A project has the same ticket for every semaphore, so that of several projects that wait for each other the
        first one can continue.
        """
        names = job.semaphores_first
        if not all(self._free(name, project) for name in names):
            return False
        self.taken.update(names)
        if names:
            # A project that takes a place goes to the end of every line, so that none is served twice before others.
            self.tickets.pop(project, None)
        return True

    def _free(self, name: str, project: str) -> bool:
        # A semaphore without a definition has one place.
        places = self.world.layouts.landed.semaphores.get(name, 1) - self.taken[name]
        line = self.world.waiters.get(name, ()) if places > 0 else ()
        return places > sum(self._goes_before(waiter, project) for waiter in line)

    def _goes_before(self, waiter: Waiter, project: str) -> bool:
        ours = (waiter.tenant, waiter.pipeline) == (self.world.tenant, self.world.pipeline.name)
        if ours and (waiter.project == project or waiter.project not in self.tickets):
            return False
        own = self.tickets.get(project)
        return own is None or waiter < own


def taken_by(state: State) -> dict[str, tuple[str, ...]]:
    """Map every running build that holds semaphores to these."""
    found = dict[str, tuple[str, ...]]()
    for _, item in state.items():
        found |= {one.build.id: one.semaphores for one in item.carried if one.build.result is None and one.semaphores}
        buildset = item.buildset
        if buildset is not None and buildset.semaphores:
            of = {job.id: job.semaphores_first for job in buildset.jobs if job.semaphores_first}
            builds = (build for build in buildset.builds.values() if build.result is None and build.job in of)
            found |= {build.id: of[build.job] for build in builds}
    return found


def holders(state: State) -> Iterator[tuple[str, str, str]]:
    """Yield (semaphore, buildset, job) for the semaphores of every running build."""
    for _, item in state.items():
        own = {build.id for build in item.buildset.builds.values()} if item.carried and item.buildset else ()
        for one in item.carried:
            # A carried build that has become the build of its job is counted below.
            if one.build.result is None and one.build.id not in own:
                yield from ((name, one.build.origin, one.build.job) for name in one.semaphores)
        if item.buildset is not None and item.buildset.semaphores:
            yield from item.buildset.semaphores


def freeze(item: Item, base: Base, world: World, actions: list[Action]) -> Item:
    """Return the item with its job graph or its configuration errors; unchanged while these are unknown."""
    buildset = item.buildset
    assert buildset is not None, "an item is frozen after its buildset merged"
    judged = [world.layouts.judged(_question(buildset, item, change, base, world)) for change in item.changes]
    known = [one for one in judged if one is not None]
    # Otherwise a proposal is still being judged in another process; a later turn asks again.
    if len(known) < len(judged):
        return item
    errors = tuple(e for c, one in zip(item.changes, known, strict=True) for e in _of_it(item, c, one, base, world))
    joined = graph.graph_of([one.graph for one in known], item.changes, everywhere=world.dependent)
    wanted = of_images(joined, item.change)
    warnings = tuple(e.render() for e in _distinct(tuple(e for e in errors if e.severity != "error")))
    blocking = tuple(e for e in errors if e.severity == "error") or wanted.errors
    warnings = buildset.warnings + warnings
    buildset = replace(
        buildset, graph=None if blocking else wanted, config_errors=_distinct(blocking), warnings=warnings
    )
    item = replace(item, buildset=buildset)
    return item if blocking else _announce(item, world, actions)


def _question(buildset: BuildSet, item: Item, change: Change, base: Base, world: World) -> LayoutRequest:
    """Return the request to judge the configuration of one change of an item; each change gets its own judgement."""
    name = buildset.id if change == item.change else derived(buildset.id, change.key)
    found = LayoutRequest(name, world.pipeline.name, change.project, change.branch, change.ref, item.files(change))
    if buildset.proposed:
        found = replace(found, texts=buildset.proposed, ahead=base.proposed)
    if change.is_change or buildset.state is None:
        return found
    given = item.by_hand.parameters if item.by_hand is not None else {}
    return replace(found, containing=buildset.state.containing, parameters=given)


def _of_it(item: Item, change: Change, judged: Judgement, base: Base, world: World) -> tuple[ConfigError, ...]:
    """Return the errors to report on a change of the item: all if it touches configuration itself."""
    if world.layouts.landed.touches_config(change.project, item.files(change), change.branch):
        return judged.errors
    return _beneath(judged.errors, base, world)


def _beneath(errors: tuple[ConfigError, ...], base: Base, world: World) -> tuple[ConfigError, ...]:
    """Return the errors of changes that are ahead only as dependencies of this one; none in a dependent pipeline. Other
    changes ahead report their errors themselves, and errors of the branch are not reported on changes."""
    if world.dependent:
        return ()
    touched = base.config(world)
    why = "; this change depends on a change with invalid configuration"
    return tuple(
        replace(e, text=e.text + why, hint="") for e in errors if e.project in touched and e.severity == "error"
    )


def _distinct(errors: tuple[ConfigError, ...]) -> tuple[ConfigError, ...]:
    """Return each error once; beyond ERRORS_MAX, replace the rest by an error with their number."""
    found = tuple(dict.fromkeys(errors))
    if (more := len(found) - ERRORS_MAX) <= 0:
        return found
    more_text, severity = f"there are {more} more errors", found[0].severity
    return (*found[:ERRORS_MAX], ConfigError("Unknown Configuration Error", more_text, severity=severity))


def _announce(item: Item, world: World, actions: list[Action]) -> Item:
    connections = () if world.disabled else world.pipeline.reporters.get("start", ())
    if item.started or not connections or item.buildset is None or not item.buildset.jobs:
        return item
    note = filled(world.pipeline.start_message, item, world)
    for change in item.changes:
        if change.connection in connections:
            work = ReportRequest(change=change, pipeline=world.pipeline.name, note=note)
            actions.append(Report(item.named(change, "start"), work, world.pipeline.precedence, "start"))
    return replace(item, started=True)


def waiting(state: State) -> Iterator[tuple[str, str]]:
    """Yield (semaphore, project) of every live item that waits for a place."""
    for _, item in state.items():
        if item.live and item.buildset is not None:
            yield from ((semaphore, item.change.project) for semaphore in item.buildset.waits)


def advance_jobs(item: Item, ahead: Sequence[Item], permits: Permits, world: World, actions: list[Action]) -> Item:
    """Return the item after skipping and starting jobs until no more can start. A job that needs no executor ends
    immediately, so others may start."""
    buildset = item.buildset
    if buildset is None or buildset.graph is None or buildset.landing:
        return settled(item, None, world, actions) if item.carried else item
    match = Match(item)
    if len(buildset.builds) < len(buildset.jobs) or buildset.graph.fail_fast:
        buildset = _begun(match, buildset, ahead, permits, world, actions)
    buildset = _resumed(buildset, actions)
    item = item if buildset is item.buildset else replace(item, buildset=buildset)
    return settled(item, match, world, actions) if item.earlier else item


def _begun(
    match: Match, buildset: BuildSet, ahead: Sequence[Item], permits: Permits, world: World, actions: list[Action]
) -> BuildSet:
    for _ in range(len(buildset.jobs) + 1):  # each round decides at least one job, or is the last
        before = buildset
        buildset = _round(match, buildset, ahead, permits, world, actions)
        if buildset is before or len(buildset.builds) == len(before.builds):
            break
    return buildset


def _resumed(buildset: BuildSet, actions: list[Action]) -> BuildSet:
    """Resume paused builds once all jobs that depend on them have ended; return the changed buildset."""
    done = graph.done_for(buildset) if buildset.paused else []
    actions.extend(Resume(build.id) for build in done)
    builds = {**buildset.builds, **{build.job: replace(build, resumed=True) for build in done}}
    return replace(buildset, builds=builds) if done else buildset


def _round(
    match: Match, buildset: BuildSet, ahead: Sequence[Item], permits: Permits, world: World, actions: list[Action]
) -> BuildSet:
    item = match.item
    if buildset.graph is not None and buildset.graph.fail_fast and buildset.job_failed:
        return _stop_the_rest(buildset, actions)
    instead = reused(item, buildset, world)
    if instead is None:
        return buildset
    builds = {**buildset.builds, **instead, **_skipped(buildset)}
    # Only in a dependent pipeline can a job hold back the changes behind.
    held, waits = world.dependent and graph.holding(ahead), dict[str, None]()
    ready = graph.ready(buildset) if not held else []
    provisions = Provisions(ready, ahead if item.change.is_change else (), world.beside.past)
    for job in ready:
        needs = provisions.required(job)
        if needs.failed and job.id not in builds:
            id = derived(buildset.id, job.id, "required")
            builds[job.id] = Build(id, job.id, result="FAILURE", voting=job.voting, error=needs.failed)
        elif not needs.waits and job.id not in builds:
            before = _instead(match, buildset, job, needs, world)
            if before is None:
                continue
            if before.id:
                builds[job.id] = before
            elif permits.take(job, item.change.project):
                builds[job.id] = run(
                    item, buildset, job, buildset.again.get(job.id, 1), world, actions, given=needs.artifacts
                )
            else:
                waits.update(dict.fromkeys(job.semaphores_first))
    match.give_way({*waits, *(name for one in ahead if one.buildset is not None for name in one.buildset.waits)})
    # Return the same object, by which callers and the comparison of states detect that nothing has changed.
    if len(builds) == len(buildset.builds) and tuple(waits) == buildset.waits:
        return buildset
    return replace(buildset, builds=builds, waits=tuple(waits))


def _skipped(buildset: BuildSet) -> dict[str, Build]:
    """Return the builds of skipped jobs, by the job's id."""
    builds = dict[str, Build]()
    for name, why in graph.skipped(buildset).items():
        voting = buildset.graph is None or buildset.graph.by_id[name].voting
        id = derived(buildset.id, name, "skipped")
        builds[name] = Build(id=id, job=name, result="SKIPPED", voting=voting, error=why)
    return builds


def _instead(
    match: Match,
    buildset: BuildSet,
    job: FrozenJob,
    needs: Required,
    world: World,
) -> Build | None:
    """Return the carried build that continues as the job's build, or an earlier one whose result is reused
    (`reuse.stands_for`); NOTHING: the job must run; None: that is not known yet. A job that somebody ordered to rerun
    always runs."""
    reusable = job.reuse and job.id not in buildset.again
    fresh = begun(match.item, buildset, job, 1, world, needs.artifacts) if reusable else None
    if fresh is not None and (continuing := match.of(fresh)) is not None:
        return continuing
    match.rule_out(job.id)
    return stands_for(buildset, job, fresh, world) if fresh is not None else NOTHING


def _stop_the_rest(buildset: BuildSet, actions: list[Action]) -> BuildSet:
    """Cancel running builds and skip waiting jobs after the first failure of a voting job (fail-fast). A running build
    that is known to fail continues, so that its log is complete. Return the changed buildset."""
    builds = dict(buildset.builds)
    for job in buildset.jobs:
        build = builds.get(job.id)
        if build is None:
            id = derived(buildset.id, job.id, "skipped")
            builds[job.id] = Build(id=id, job=job.id, result="SKIPPED", voting=job.voting, error=FAIL_FAST)
        elif build.result is None and not build.pre_fail:
            actions.append(Cancel(build.id, build=True))
            builds[job.id] = replace(build, result="CANCELED", error=FAIL_FAST)
    return replace(buildset, builds=builds, waits=())
