"""Start items on a base, and their builds, by requests to mergers and executors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.dynamic import Texts
from headgate.config.model import FrozenJob, Pipeline
from headgate.gate.builds.carry import reset
from headgate.gate.builds.graph import HANDED_MAX_BYTES, parent_data, parent_secrets, parents, until_too_much
from headgate.gate.builds.provisions import provided_artifacts
from headgate.gate.builds.reuse import inputs_of, is_fit, wanted, work_of
from headgate.gate.rules.refs import ref_at
from headgate.gate.rules.refs import variables as of_ref
from headgate.gate.state.actions import Action, Cancel, Merge, Run
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.model import Build, BuildSet, Item, Phase, State, Unfollowed
from headgate.gate.state.works import BuildSpec, MergeRequest, digest_of
from headgate.gate.state.world import LayoutView, World


@dataclass(slots=True)
class Base:
    """Collect the base of the next item, from the items that were handled before it, from the head on."""

    ahead: str | None = None
    """Id of the nearest buildset ahead that is still expected to land; None: there is none."""
    chain: list[Item] = field(default_factory=list)
    """The items whose changes are merged beneath, furthest first."""
    items: list[Item] = field(default_factory=list)
    """The items that test these changes, furthest first: the live item with the same patchset, or else the item
    itself."""
    unfollowed: Mapping[str, Unfollowed] = field(default_factory=dict)
    """Project -> landed configuration beneath the chain that the layout does not include yet."""
    proposed: Texts = field(default_factory=dict)
    """Configuration that the chain proposes."""
    keys: set[str] = field(default_factory=set)
    """Keys of the changes ahead, and of those that have just landed."""
    failing: set[str] = field(default_factory=set)
    """Keys of the failing changes ahead."""
    live: int = 0
    """Number of live items ahead."""
    _merges: list[MergeItem] = field(default_factory=list)
    """Merges of the first `_covered` items of the chain, which `merges` extends on demand; `_config` has the projects
    whose configuration these items touch."""
    _covered: int = 0
    _config: set[str] = field(default_factory=set)

    def extend(self, item: Item, tester: Item) -> None:
        """Add an item, whose changes `tester` tests. Items behind are tested as if it lands, unless it is failing."""
        self.keys.update(item.keys)
        self.live += item.live
        # The items behind are no longer based on it: their buildsets have another base than this one, so they start
        # again.
        if item.failing:
            self.failing.update(item.keys)
            return
        # A ref has nothing to merge, so it adds nothing to the chain.
        if item.change.is_change:
            self.chain.append(item)
        self.items.append(tester)
        if item.live and item.buildset is not None:
            self.ahead = item.buildset.id
            self.proposed = item.buildset.proposed

    def merges(self, world: World) -> list[MergeItem]:
        """Return the chain in the form of merge requests."""
        layout = world.layouts.landed
        # Computed once for all items of a turn, as each of them is based on a longer part of the same chain.
        for item in self.chain[self._covered :]:
            self._merges += merge_items(item, self.chain, world)
            for change in item.changes:
                if layout.touches_config(change.project, item.files(change), change.branch):
                    self._config.add(change.project)
        self._covered = len(self.chain)
        return self._merges

    def config(self, world: World) -> set[str]:
        """Return the projects whose configuration the chain touches."""
        self.merges(world)
        return self._config


def merge_items(item: Item, chain: Sequence[Item], world: World) -> list[MergeItem]:
    """Return the merges of the changes of `item`, on top of the part of `chain` that is ahead of it."""
    return [_merge_item(item, change, chain, world) for change in item.changes]


def _merge_item(item: Item, change: Change, chain: Sequence[Item], world: World) -> MergeItem:
    bases = {one.key: one.commit for other in (*chain, item) for one in other.changes} if change.bases else {}
    for key in change.bases:
        if (found := world.change_states.get(key)) is not None and found.landed:
            # A landed base is part of the branch, possibly as another commit, and must not be merged again.
            bases[key] = found.change.commit
    return MergeItem(
        item=item.id,
        project=change.project,
        connection=change.connection,
        branch=change.branch,
        ref=change.ref,
        commit=change.commit,
        mode=world.layouts.landed.merge_mode(change.project, change.branch),
        # Not the present time: merging again must give the same commits.
        at_s=item.enqueued_ms // 1000,
        message=change.message,
        bases=tuple(bases[key] for key in change.bases if key in bases),
        number=change.number,
        patchset=change.patchset,
        topic=change.topic,
        url=change.url,
    )


def start(item: Item, base: Base, world: World, actions: list[Action]) -> Item:
    """Return the item with a new buildset on this base, and request its merge."""
    # Builds on the old base are cancelled or carried before anything is requested on the new one.
    item = reset(item, world, actions)
    # An item may return to a base that it had before; the number of resets makes the buildset's id unique.
    id = derived(item.id, str(item.resets), base.ahead or "")
    actions.append(Merge(derived(id, "merge"), _merge(id, item, base, world), world.pipeline.precedence))
    buildset = BuildSet(id=id, ahead=base.ahead, merge=Phase.RUNNING)
    return replace(item, resets=item.resets + 1, buildset=buildset, problem="")


def _merge(buildset: str, item: Item, base: Base, world: World) -> MergeRequest:
    """Return the request to merge the item on its base.

    It also reads the configuration of the projects whose configuration the chain touches, of those whose landed
    configuration the layout does not include yet, and of the item's own projects, as their jobs are defined by the
    tested state.
    """
    change = item.change
    projects = {one.project: one.connection for one in item.changes}
    own = world.change_states.get(change.key)
    if not change.is_change or (own is not None and own.landed and not item.others):  # there is nothing to merge
        at = None if change.is_change else ref_at(item, world)
        landed = change.commit if change.is_change else ""
        chain = tuple(base.merges(world))
        return MergeRequest(buildset=buildset, chain=chain, projects=projects, at=at, landed=landed)
    unfollowed = base.unfollowed
    configured = sorted({*projects, *unfollowed, *base.config(world)})
    paths = {project: world.layouts.landed.config_paths(project) for project in configured}
    compared = world.pipeline.rerun_only_failed and not item.others
    also = world.beside.trusted if compared else {}  # see `reuse.work_of`
    given = wanted(item, world)
    return MergeRequest(
        buildset=buildset,
        chain=(*base.merges(world), *merge_items(item, base.chain, world)),
        projects={**also, **{project: found.connection for project, found in unfollowed.items()}, **projects},
        config_paths=paths,
        config_heads={project: tuple(found.branches) for project, found in unfollowed.items()},
        config_known={project: dict(world.layouts.content(project)) for project in paths},
        given=given,
    )


def abandon(item: Item, actions: list[Action]) -> None:
    """Cancel the merge and the builds of the item, whose results are no longer needed."""
    buildset = item.buildset
    if buildset is not None and buildset.merge is Phase.RUNNING:
        actions.append(Cancel(derived(buildset.id, "merge"), build=False))
    actions.extend(Cancel(build.id, build=True) for build in item.under_way)


def awaited(state: State) -> set[str]:
    """Return the ids of the requests for merges and builds that have no answer yet."""
    buildsets = [item.buildset for _, item in state.items() if item.buildset is not None]
    merges = {derived(buildset.id, "merge") for buildset in buildsets if buildset.merge is Phase.RUNNING}
    return merges | {build.id for _, item in state.items() for build in item.under_way}


def stopped(item: Item, actions: list[Action]) -> Item:
    """Cancel the merge and the builds of the item like `abandon`, but return it with its results so far, for the
    report."""
    abandon(item, actions)
    # `abandon` has cancelled the carried builds, too, and they do not belong to this buildset.
    buildset, item = item.buildset, replace(item, carried=(), earlier={}) if item.carried or item.earlier else item
    if buildset is None:
        return item
    ended = {n: b if b.result else replace(b, result="CANCELED") for n, b in buildset.builds.items()}
    return replace(item, buildset=replace(buildset, builds=ended))


TOO_MUCH = f"the data of the jobs that it depends on exceeds {HANDED_MAX_BYTES // 1000} kB: make them return less"


def run(
    item: Item,
    buildset: BuildSet,
    job: FrozenJob,
    attempt: int,
    world: World,
    actions: list[Action],
    *,
    given: tuple[dict[str, object], ...] = (),
) -> Build:
    """Return the build of `job`, with the artifacts `given` by changes ahead, and request it from an executor. The
    built-in job `noop` succeeds without an executor, and a job that would receive too much data fails immediately."""
    build = begun(item, buildset, job, attempt, world, given)
    if job.noop:
        return replace(build, result="SUCCESS")
    id, zuul = build.id, variables(item, buildset, job, build, world.tenant, world.pipeline)
    data, secrets = parent_data(job, buildset), parent_secrets(job, buildset)
    if len(msgspec.json.encode((data, secrets, zuul["artifacts"]))) > HANDED_MAX_BYTES:
        return replace(build, result="FAILURE", error=TOO_MUCH, given=())
    semaphores = limits(job, world.layouts.landed)
    spec = BuildSpec(
        build=id,
        buildset=buildset.id,
        tenant=world.tenant,
        pipeline=world.pipeline.name,
        item=item.id,
        job=job,
        change=item.subjects(job)[0],
        also=item.subjects(job)[1:],
        together=item.changes if item.others else (),
        attempt=attempt,
        zuul=zuul,
        parent_data=data,
        parent_secrets=secrets,
        semaphores=semaphores,
        shared=tuple(name for name in semaphores if name in world.layouts.landed.shared),
    )
    actions.append(Run(id, spec, world.pipeline.precedence))
    return build


def begun(
    item: Item, buildset: BuildSet, job: FrozenJob, attempt: int, world: World, given: tuple[dict[str, object], ...]
) -> Build:
    """Return a new build, without requesting it. A job that waits asks for it in every turn."""
    graph, state = buildset.graph, buildset.state
    if graph is None or state is None:
        return _begun(item, buildset, job, attempt, world, given)
    facts = (buildset.id, item.change, item.others, item.landed, item.epilogue, world.tenant, world.pipeline)
    known = state.fresh.values(graph, buildset.builds, facts)
    # Artifacts may be large, so they are not remembered themselves.
    key = (attempt, digest_of(given) if given else "")
    found: tuple[object, Build] | None = known.get(job.id)
    if found is None or found[0] != key:
        build = _begun(item, buildset, job, attempt, world, given)
        known[job.id] = found = (key, replace(build, given=()))
    return replace(found[1], requested_ms=world.now_ms, given=given)


def _begun(
    item: Item, buildset: BuildSet, job: FrozenJob, attempt: int, world: World, given: tuple[dict[str, object], ...]
) -> Build:
    beneath = (buildset.builds.get(name) for name in sorted(parents(buildset, job)))
    # If a paused build runs again, the builds that used its services must get new ids, as these services are gone.
    id = derived(buildset.id, job.id, str(attempt), *(b.id for b in beneath if b and b.paused))
    build = Build(id=id, job=job.id, attempt=attempt, voting=job.voting, requested_ms=world.now_ms, given=given)
    if not is_fit(item, job):
        return build if job.noop else replace(build, work=work_of(item, buildset, job, world))
    zuul = variables(item, buildset, job, build, world.tenant, world.pipeline)
    inputs = inputs_of(item, buildset, job, zuul, world)
    return replace(build, work=work_of(item, buildset, job, world), inputs=inputs)


def limits(job: FrozenJob, layout: LayoutView) -> dict[str, int]:
    """Map the semaphores that the executor takes for the job and its playbooks to their numbers of places."""
    names = {name for book in (*job.pre_run, *job.run, *job.post_run) for name in book.semaphores}
    names.update(job.semaphores_last)
    return {name: layout.semaphores.get(name, 1) for name in sorted(names)}


def variables(
    item: Item, buildset: BuildSet, job: FrozenJob, build: Build, tenant: str, pipeline: Pipeline
) -> dict[str, Any]:
    """Return the part of the `zuul` variable that the gate knows.  JSON."""
    change = item.subjects(job)[0]
    host, _, name = change.project.partition("/")
    project = {
        "name": name,
        "short_name": name.rpartition("/")[2],
        "canonical_hostname": host,
        "canonical_name": change.project,
        "src_dir": f"src/{change.project}",
    }
    return {
        "build": build.id,
        "buildset": buildset.id,
        "pipeline": pipeline.name,
        "post_review": pipeline.post_review,
        "job": job.name,
        "voting": job.voting,
        "tenant": tenant,
        "event_id": item.event,
        "timeout": job.timeout_s,
        "pre_timeout": job.pre_timeout_s,
        "post_timeout": job.post_timeout_s,
        "jobtags": list(job.tags),
        "attempts": build.attempt,
        "max_attempts": job.attempts_max,
        "project": project,
        "artifacts": _artifacts(item, buildset, job, build),
        "child_jobs": _children(buildset, job),
        **of_ref(change),
    }


def _children(buildset: BuildSet, job: FrozenJob) -> list[str]:
    """Return the names of the jobs that depend directly on this one."""
    graph = buildset.graph
    ids = [id for id, _ in graph.needed_by.get(job.id, ())] if graph is not None else []
    return sorted({graph.by_id[id].name for id in ids if id in graph.by_id}) if graph is not None else []


def _artifacts(item: Item, buildset: BuildSet, job: FrozenJob, build: Build) -> list[Any]:
    """Return the artifacts that the job requires of changes ahead, and those of the jobs it depends on, as far as
    `until_too_much`."""
    names = parents(buildset, job)
    ours = ((buildset.builds.get(other.id), other) for other in buildset.jobs if other.id in names)
    own = (one for done, other in ours if done for one in provided_artifacts(done, other, item))
    return list(until_too_much(itertools.chain(build.given, own)))
