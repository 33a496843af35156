"""Implement the ports to the world for services: a forge, git, and a runner."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.adapters.git.poll.moves import MovedRefs, moved_refs
from headgate.base.ids import derived
from headgate.base.tasks import unless
from headgate.config.dynamic import Judgement, LayoutRequest, TenantLayouts
from headgate.config.operator.model import TenantProject, content_of
from headgate.gate.state import works
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.gate.state.gitwork import Trees
from headgate.ports.forge import Hint, Sighting
from headgate.ports.work import Contact
from headgate.testing.sim import worlds


@dataclass(slots=True)
class SimJudge:
    """Implement `ports.judge.Judge`, and take some time."""

    world: worlds.SimWorld

    async def judged(self, layouts: TenantLayouts, request: LayoutRequest) -> Judgement:
        await asyncio.sleep(self.world.chance.random() * 0.5)
        return layouts.judged(request)


@dataclass(slots=True)
class SimForge:
    """Implement `ports.forge.ForgeWatch` over the world."""

    world: worlds.SimWorld
    name: str = "sim"

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Do nothing: the projects of the world are fixed."""

    def stir(self, hint: Hint) -> None:
        """Do nothing: the world announces its own changes and sends no hints."""

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        event = asyncio.Event()
        self.world.stirred.append(event)
        try:
            while True:
                event.clear()
                found = self._look(known, heads, refs)
                if found.change_states or found.heads or found.refs:
                    yield found
                await event.wait()
        finally:
            self.world.stirred.remove(event)

    def _look(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> Sighting:
        change_states, events = list[ChangeState](), list[TriggerEvent]()
        for key, now in self.world.open.items():
            old = known.get(key)
            if old == now:
                continue
            change_states.append(now)
            # A new commit, or a reopened change, counts as a new proposal.
            if old is None or old.change.commit != now.change.commit or not old.open:
                events.append(self._event(EventKind.PROPOSED, now.change, fresh=old is None or not old.open))
            # An approval of the former commit does not count for the new one.
            approved_before = old is not None and self.world.is_approved(old) and old.change == now.change
            if self.world.is_approved(now) and not approved_before:
                events.append(self._event(EventKind.APPROVED, now.change))
        for key, old in dict(known).items():
            if old.open and key not in self.world.open:
                landed = old.change.commit in worlds.commits(self.world.heads[old.change.project])
                change_states.append(ChangeState(old.change, open=False, landed=landed))
                if landed:
                    events.append(self._one_time_event(EventKind.MERGED, old.change))
                else:
                    events.append(self._event(EventKind.ABANDONED, old.change))
            # The change is known to have landed, but no event has announced it.
            elif old.untold:
                change_states.append(replace(old, untold=False))
                events.append(self._one_time_event(EventKind.MERGED, old.change))
        # Compare with the store and not with an earlier poll: a new process then finds what a dead one missed.
        moved = {p: {worlds.HEAD: head} for p, head in self.world.heads.items() if heads.get(p) != {worlds.HEAD: head}}
        events += [self._updated(project, heads[project][worlds.HEAD]) for project in moved if project in heads]
        found = {p: self._tags(p, refs.get(p)) for p in self.world.heads}
        events += [self._one_time_event(EventKind.REF_UPDATED, c) for one in found.values() if one for c in one.updates]
        seen = {project: one.now for project, one in found.items() if one is not None}
        return Sighting(tuple(change_states), tuple(events), moved, seen)

    def _tags(self, project: str, seen: Mapping[str, str] | None) -> MovedRefs | None:
        """Return how the tags of a project differ from those `seen`, as at a repository, or None if they do not."""
        return moved_refs(self.name, project, seen, self.world.tags.get(project, {}))

    def _updated(self, project: str, before: str) -> TriggerEvent:
        world = self.world
        now = world.heads[project]
        files = world.differing(project, before, now)
        change = Change(self.name, project, worlds.BRANCH, commit=now, old_commit=before, ref=worlds.HEAD, files=files)
        return self._event(EventKind.REF_UPDATED, change)

    def _event(self, kind: EventKind, change: Change, *, fresh: bool = False) -> TriggerEvent:
        # Another id each time: a forge that is asked twice tells the same thing twice, and the gate has to cope.
        id = derived(kind, change.key, change.commit, str(self.world.chance.random()))
        return TriggerEvent(kind, change, id, fresh=fresh)

    def _one_time_event(self, kind: EventKind, change: Change) -> TriggerEvent:
        """Return the event of something that happens once: reporting it again gives it another id."""
        self.world.events_made += 1
        return TriggerEvent(kind, change, derived(kind, change.key, change.commit, str(self.world.events_made)))


@dataclass(slots=True)
class SimGit:
    """Implement `ports.work.GitWork` over the world."""

    world: worlds.SimWorld

    async def do(self, work: works.MergerWork) -> works.MergerAnswer:
        await asyncio.sleep(self.world.chance.random() * 0.2)
        match work:
            case works.MergeRequest():
                return self._merge(work)
            case works.LandRequest():
                try:
                    return self._land(work)
                # Recorded as well as raised: a service would set the request aside, and continue.
                except worlds.InvariantBroken as broken:
                    self.world.broken = broken
                    raise
            case works.CatRequest():
                head = self.world.seen[work.project] = self.world.heads[work.project]
                return works.CatAnswer(
                    work.project,
                    True,
                    branches={worlds.BRANCH: head},
                    files={worlds.BRANCH: self.world.files(work.project, head, work.paths)},
                )
            case works.ReportRequest():
                return works.ReportAnswer(True)
            case _:
                raise AssertionError("there are no reviews in a simulated world")

    def _merge(self, work: works.MergeRequest) -> works.MergeAnswer:
        for harm in (self.world.harms.get(item.commit) for item in work.chain):
            if harm is not None and harm.merging is not None:
                raise harm.merging.with_traceback(None)  # raised again each time, it would remember all of them
        projects = {*work.projects, *(item.project for item in work.chain)}
        projects |= work.given.keys()
        heads = {project: {worlds.HEAD: self.world.heads[project]} for project in projects}
        bases: dict[str, dict[str, str]] = {}
        results: dict[str, dict[str, str]] = {}
        touched = list[tuple[str, ...]]()
        for item in work.chain:
            # Each item is merged onto those before it.
            head = results.get(item.project, {}).get(worlds.BRANCH, self.world.heads[item.project])
            landed = set(worlds.commits(head))
            if item.commit not in landed and any(item.commit in p and p & landed for p in self.world.unmergeable):
                return works.MergeAnswer(work.buildset, False, item.item, f"conflicts in {item.commit}")
            results[item.project] = {worlds.BRANCH: worlds.merged(head, item)}
            if item.item == work.chain[-1].item and work.at is None and not work.landed:
                bases.setdefault(item.project, {worlds.BRANCH: worlds.tree(head)})
                touched.append(self.world.differing(item.project, head, results[item.project][worlds.BRANCH]))
        commit = {
            project: results.get(project, {}).get(worlds.BRANCH, self.world.heads[project]) for project in projects
        }
        texts = {p: self.world.files(p, commit[p], paths) for p, paths in work.config_paths.items()}
        known = {p: work.config_known.get(p, {}).get(worlds.BRANCH) for p in texts}
        # The requester has the other files already.
        unknown = {p: {worlds.BRANCH: t} for p, t in texts.items() if known[p] != content_of(t)}
        containing: tuple[str, ...] = ()
        if work.at is not None and work.at.ref != worlds.HEAD:
            heads[work.at.project][work.at.ref] = work.at.commit
            containing = (worlds.BRANCH,)
        state = works.RepoState(work.chain, heads, results, dict.fromkeys(projects, "sim"), work.landed, containing)
        if work.given:
            trees = {project: {worlds.BRANCH: worlds.tree(found[worlds.BRANCH])} for project, found in results.items()}
            before = {project: {worlds.BRANCH: worlds.tree(self.world.heads[project])} for project in work.given}
            state = replace(state, trees=trees, known=Trees(before, bases))
        return works.MergeAnswer(work.buildset, True, state=state, config=unknown, touched=tuple(touched))

    def _land(self, work: works.LandRequest) -> works.LandAnswer:
        change, world = work.change, self.world
        own = change.project if work.later or work.rest else ""
        # After a lost answer, the same request comes again: agreeing again is right, but only for the same buildset.
        if work.commit in _history(world.heads[change.project]):
            if world.landed_by.get(change.commit, work.buildset) != work.buildset:
                raise worlds.InvariantBroken(f"{change.key} is to land, but has landed already")
            return works.LandAnswer(work.buildset, True, project=own)
        # A push that was already made is found above.
        if work.shut:
            return works.LandAnswer(work.buildset, False, shut=True, project=own)
        for part in (*work.parts, *work.later):
            error, moved = self._obstacle(part, work.state)
            if error or moved:
                return works.LandAnswer(work.buildset, False, moved=moved, error=error, project=own)
        world.land(work)
        return works.LandAnswer(work.buildset, True, project=own)

    def _obstacle(self, part: works.Landing, state: works.RepoState) -> tuple[str, bool]:
        """Return why a part cannot land now (empty if only its branch is the obstacle), and whether its branch has
        moved. Raise InvariantBroken if it is to land as another commit although nobody else moved the branch."""
        change, world = part.change, self.world
        if change.key not in world.open or world.open[change.key].change.commit != change.commit:
            return f"{change.key} is no longer proposed", False
        if not _still_approved(part, world.open[change.key]):
            return f"the approval of {change.key} was withdrawn", False
        head = made = world.heads[change.project]
        of = next(item.item for item in state.chain if item.commit == change.commit)
        for item in state.chain:
            made = worlds.merged(made, item) if (item.item, item.project) == (of, change.project) else made
        if made != part.commit and not world.foreign:
            raise worlds.InvariantBroken(
                f"{change.key} is to land as {part.commit}, but nobody else moved the head from {head}"
            )
        return "", made != part.commit


def _still_approved(work: works.Landing, now: ChangeState) -> bool:
    """Return whether the server still holds the approvals that a landing needs, and no veto that counts."""
    refs = {word.ref for word in now.approvals if word.commit == work.change.commit}
    return not (work.approved and not now.is_approved) and refs >= set(work.leases) and not (work.vetoed and now.vetoes)


def _history(head: str) -> list[str]:
    # A branch that moved on still contains its former heads.
    parts = worlds.commits(head)
    return ["+".join(parts[: n + 1]) for n in range(len(parts))]


HOLDING_MAX_S = 300.0
"""Longest time that a playbook waits for its semaphores."""


STOPPED_S = 2.0
"""Longest time that a cancelled build continues."""
FAILING_S = 2.0
"""Delay of failing builds, so that passing ones have ended and can be reused."""


@dataclass(slots=True)
class SimRunner:
    """Implement `ports.work.Runner` over the world."""

    world: worlds.SimWorld
    flaky: float = 0.05

    async def run(  # noqa: C901 - one outcome after the other
        self, spec: works.BuildSpec, state: works.RepoState, cancel: asyncio.Event, contact: Contact
    ) -> works.BuildOutcome:
        """Run a build.  The job `serves` pauses, and the jobs after it need it until they have ended."""
        if (occasion := spec.change.occasion) is not None:
            self.world.posts.ran.setdefault(occasion.ordering_key, []).append(occasion.id)
        harm = self.world.harms.get(spec.change.commit)
        server = f"{spec.buildset} {spec.change.commit}"
        served = spec.job.name not in self.world.served or server in self.world.serving
        if spec.semaphores:
            async with contact.holding(tuple(spec.semaphores), cancel, HOLDING_MAX_S) as held:
                if held:
                    await unless(cancel, asyncio.sleep(self.world.chance.random()))
        try:
            slow_s = FAILING_S if self.world.reusing and self._fails(spec, state) else 0.0
            async with asyncio.timeout(0.1 + self.world.chance.random() + slow_s):
                await cancel.wait()
            await asyncio.sleep(STOPPED_S * random.Random(spec.build).random())
            return works.BuildOutcome(build=spec.build, result="CANCELED")
        except TimeoutError:
            pass
        if harm is not None:
            return _harmful(spec, harm)
        # Without a result, the gate tries again.
        if self.world.chance.random() < self.flaky:
            return works.BuildOutcome(build=spec.build, result=None, error="the node went away")
        if self._fails(spec, state):
            self.world.failed[spec.build] = self._present(spec, state) - {spec.change.commit}
            return works.BuildOutcome(build=spec.build, result="FAILURE")
        if not served or (spec.job.name in self.world.served and server not in self.world.serving):
            return works.BuildOutcome(build=spec.build, result="FAILURE", error=worlds.UNSERVED)
        if spec.job.name == "serves":
            self.world.serving.add(server)
            try:
                await unless(cancel, contact.pause({"zuul": {"pause": True}, **self.world.returned}))
            finally:
                self.world.serving.discard(server)
        if cancel.is_set():
            return works.BuildOutcome(build=spec.build, result="CANCELED")
        self.world.passes(spec.pipeline, spec.job.name, spec.change.project, state)
        return works.BuildOutcome(build=spec.build, result="SUCCESS", data=self.world.returned, narrow=spec.job.reuse)

    def _fails(self, spec: works.BuildSpec, state: works.RepoState) -> bool:
        present = self._present(spec, state)
        return any(bad <= present for bad in self.world.conflicting)

    def _present(self, spec: works.BuildSpec, state: works.RepoState) -> set[str]:
        """Return the commits that the build receives."""
        if spec.job.name in self.world.reusing:
            heads = list(self.world.handed(spec.job.name, spec.change.project, state).values())
        else:
            heads = [head for branches in state.merged.values() for head in branches.values()]
        return {commit for head in heads for commit in worlds.commits(head)}


def _harmful(spec: works.BuildSpec, harm: worlds.Harm) -> works.BuildOutcome:
    """Return the answer of an executor that does not check what a job returned. Raise the error of the harm."""
    if harm.running is not None:
        raise harm.running.with_traceback(None)  # raised again each time, it would remember all of them
    return works.BuildOutcome(build=spec.build, result=harm.result, data=harm.returned)
