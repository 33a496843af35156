"""Record the results of a turn: ended buildsets for the history, and image reports for the launcher."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.assembly.inheritance import canonical
from headgate.config.layout import Layout
from headgate.gate.builds import report
from headgate.gate.builds.imagework import body_of, image_news, images_of
from headgate.gate.builds.reuse import lasting
from headgate.gate.state.actions import Action, Record
from headgate.gate.state.model import Build, BuildSet, Item, State
from headgate.gate.state.returns import ReturnedArtifact, checked
from headgate.gate.state.works import BuildOutcome
from headgate.gate.state.world import World
from headgate.map.inventory.images import ImageFile, ImageReport
from headgate.map.places import Map
from headgate.map.records import Finished, FinishedBuild
from headgate.recipes.requestforms import Open
from headgate.services.configuration import Configuration
from headgate.store.types import Op

log = logging.getLogger("headgate.images")

GAVE_WAY = "It was tested again, because the state on which it is based has changed."
FILES_MAX = 50
"""Limit on the files of one item."""


@dataclass(frozen=True, slots=True)
class Bygone:
    """Create the records of everything that ended in one pipeline's turn."""

    tenant: str
    pipeline: str
    now_ms: int
    ending: Mapping[str, Open]
    """The requests that end with this turn, by id; they record when their work started."""
    outcomes: Mapping[str, BuildOutcome]
    """Build -> its outcome, for builds whose end this turn absorbs."""

    def ended(self, item: Item, result: str, message: str) -> Finished:
        """Return the record of an item that left with this result."""
        buildset = item.buildset
        builds = self._builds(buildset, buildset.builds.values(), final=True) if buildset is not None else ()
        return self._of(item, buildset.id if buildset is not None else item.id, result, message, builds)

    def superseded(self, before: State, after: State, actions: Sequence[Action]) -> Iterator[Finished]:
        """Yield the buildsets of `before` that no item has any longer and, for buildsets that continue, their replaced
        or stopped builds."""
        now = {item.buildset.id: item.buildset for _, item in after.items() if item.buildset is not None}
        present = {build for _, item in after.items() for build in _every(item)}
        for action in actions:
            # `ended` records the last buildset of an item that leaves, so it counts as present here and is not recorded
            # a second time as superseded.
            if isinstance(action, Record) and action.item.buildset is not None:
                now[action.item.buildset.id] = action.item.buildset
        for _, item in before.items():
            yield from self._not_carried(item, present)
            old = item.buildset
            # Unchanged parts of a state are the same objects as before, so identity quickly finds most of them.
            if old is None or (new := now.get(old.id)) is old:
                continue
            if new is None:
                ended = (build for build in old.builds.values() if build.id not in present)
                builds = self._builds(old, ended, final=False)
                yield self._of(item, old.id, "DEQUEUED", GAVE_WAY, builds, final=False)
            else:
                repeated = self._builds(old, _gone(old, new), final=False)
                if builds := (*repeated, *self._builds(old, _stopped(old, new), final=True)):
                    yield self._of(item, old.id, "", "", builds)

    def _not_carried(self, item: Item, present: Collection[str]) -> Iterator[Finished]:
        """Yield builds of earlier bases that did not become builds of the newer one."""
        for one in item.carried:
            if one.build.id not in present and one.build.origin:
                build = self._known(one.build)
                found = build.returned.artifacts or ()
                builds = (self._build(build, one.name, one.nodeset, one.provides, found, final=False),)
                yield self._of(item, build.origin, "", "", builds)

    def _of(
        self,
        item: Item,
        buildset: str,
        result: str,
        message: str,
        builds: tuple[FinishedBuild, ...],
        *,
        final: bool = True,
    ) -> Finished:
        return Finished(
            buildset=buildset,
            tenant=self.tenant,
            pipeline=self.pipeline,
            change=item.circle[0],
            others=item.circle[1:],
            event=item.event,
            result=result,
            message=message,
            enqueued_ms=item.enqueued_ms,
            ended_ms=self.now_ms,
            item=item.id,
            builds=builds,
            final=final,
            tree=tree_of(item),
        )

    def _builds(self, buildset: BuildSet, builds: Iterable[Build], *, final: bool) -> tuple[FinishedBuild, ...]:
        jobs = {job.id: job for job in buildset.jobs}
        artifacts, line_comments, found = (
            report.artifacts_of(buildset),
            report.comments_of(buildset),
            list[FinishedBuild](),
        )
        for build in map(self._known, builds):
            job = jobs[build.job]
            own = artifacts.get(build.id, ())
            finished = self._build(build, job.name, job.nodeset.name, job.provides, own, final=final)
            names = tuple(one.name for one in job.semaphores)
            needs, about = tuple(one.name for one in job.dependencies), line_comments.get(build.id, {})
            found.append(replace(finished, needs=needs, semaphores=names, comments=about))
        return tuple(found)

    def _build(
        self,
        build: Build,
        name: str,
        nodeset: str,
        provides: tuple[str, ...],
        artifacts: tuple[ReturnedArtifact, ...],
        *,
        final: bool,
    ) -> FinishedBuild:
        return FinishedBuild(
            uuid=build.id,
            job_name=name,
            result=build.result or "CANCELED",
            voting=build.voting,
            start_ms=build.start_ms,
            end_ms=build.end_ms,
            log_url=build.log_url,
            error=report.error_of(build),
            nodeset=nodeset,
            artifacts=artifacts,
            provides=provides,
            final=final,
            attempt=build.attempt,
            work=_work(build, keeps_artifacts=bool(artifacts)),
            image=build.image,
            # Builds are found in the history by their inputs, so a build that must not be reused is stored without
            # them.
            inputs=build.inputs if lasting(build) else "",
            returned=build.data if lasting(build) else {},
            requested_ms=build.requested_ms,
            course=build.course,
        )

    def _known(self, build: Build) -> Build:
        """Return a build with its outcome: as its worker reports in this turn or, if it was stopped, as its request
        records."""
        if build.result is None and (outcome := self.outcomes.get(build.id)) is not None:
            outcome = outcome.fit()
            return replace(
                build,
                result=outcome.result or "RETRY",
                error=outcome.error,
                start_ms=outcome.start_ms,
                end_ms=outcome.end_ms,
                log_url=checked(outcome.data).log_url or "",
                image=outcome.image,
                data=outcome.data,
                course=outcome.course,
                secret=outcome.secret,
                narrow=outcome.narrow,
            )
        # A cancelled build no longer reports anything; only its request shows when a worker started it.
        stopped = build.result in (None, "CANCELED") and not build.start_ms
        found = self.ending.get(build.id) if stopped else None
        began_ms = found.request.owner.start_ms if found is not None else 0
        return replace(build, start_ms=began_ms, end_ms=self.now_ms) if began_ms else build


def _every(item: Item) -> Iterator[str]:
    """Yield the ids of all builds, including carried ones, whose reuse is not yet decided."""
    yield from (one.build.id for one in item.carried)
    yield from (build.id for build in item.buildset.builds.values()) if item.buildset is not None else ()


def _work(build: Build, *, keeps_artifacts: bool) -> str:
    """Return `build.work`; empty for a build that did not pass, or whose artifacts were too large to store."""
    return build.work if build.result == "SUCCESS" and (keeps_artifacts or not build.returned.artifacts) else ""


def _gone(old: BuildSet, new: BuildSet) -> list[Build]:
    """Return the builds of `old` that others replaced."""
    present = {build.id for build in new.builds.values()}
    return [build for build in old.builds.values() if build.id not in present]


def _stopped(old: BuildSet, new: BuildSet) -> list[Build]:
    """Return the builds that ran in `old` and are cancelled in `new`, which will not report any longer."""
    running = {build.id for build in old.builds.values() if build.result is None}
    return [build for build in new.builds.values() if build.id in running and build.result == "CANCELED"]


def tree_of(item: Item) -> str:
    """Return an id that is the same for tests of the same state of the code; empty if that is unknown."""
    buildset, change = item.buildset, item.change
    if buildset is None or buildset.state is None:
        return ""
    if not change.is_change:
        # A tag or a branch is tested without a merge, so its commit identifies the state.
        return derived("tree", change.project, change.commit)
    trees = buildset.state.trees
    known = [f"{project} {branch} {tree}" for project, found in trees.items() for branch, tree in found.items()]
    return derived("tree", *sorted(known)) if known else ""


def image_ops(map: Map, configuration: Configuration, actions: Sequence[Action], world: World) -> Iterator[list[Op]]:
    """Yield operations that record the image reports of the items that a turn ends; repeating them changes nothing."""
    for action in actions:
        if isinstance(action, Record) and action.item.live and not action.item.epilogue:
            found = _report(action, configuration.layouts.landed, world)
            if found is not None:
                yield [map.images.reports(found.id).record.put(found)]


def _report(ended: Record, layout: Layout, world: World) -> ImageReport | None:
    """Return the item's report on images, by the reporters of its result; None if there is none."""
    item, body = ended.item, body_of(ended.item.change)
    if item.buildset is None or ended.refused:
        return None
    verdict = image_news(world.pipeline, report.kind_of(ended.result, world))
    files = tuple(_files(item, layout))[:FILES_MAX] if verdict.built and ended.result == "SUCCESS" else ()
    upload = body.image_upload_uuid if body is not None and verdict.validated is not None else ""
    if not files and not upload:
        return None
    return ImageReport(
        # The id is derived, so that a repeated turn writes the same report.
        id=derived("images", world.tenant, world.pipeline.name, item.id, item.buildset.id),
        tenant=world.tenant,
        pipeline=world.pipeline.name,
        files=files,
        upload=upload,
        validated=verdict.validated,
        at_ms=world.now_ms,
    )


def _files(item: Item, layout: Layout) -> Iterator[ImageFile]:
    """Yield the files that are images; log all others."""
    for job, build, number, artifact in images_of(item):
        stanza = layout.singles["image"].get(job.image_build_name)
        source = layout.tenant.find(stanza.source.project) if stanza is not None else None
        if stanza is None or source is None or stanza.body.get("type") != "zuul":
            log.warning("build %s: %s is not an image that jobs may build", build.id, job.image_build_name)
            continue
        yield ImageFile(
            image=canonical(stanza),
            name=stanza.name,
            project=stanza.source.project,
            connection=source.connection,
            branch=stanza.source.branch,
            build=build.id,
            number=number,
            format=_metadata(artifact, "format"),
            url=artifact.url,
            sha256=_metadata(artifact, "sha256").lower(),
            md5=_metadata(artifact, "md5sum").lower(),
        )


def _metadata(artifact: ReturnedArtifact, key: str) -> str:
    value: Any = (artifact.metadata or {}).get(key)
    return value if isinstance(value, str) else ""
