"""Find the artifacts that jobs require of changes ahead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.config.model import FrozenJob
from headgate.gate.builds.graph import NOTHING_PROVIDED, Past, until_too_much
from headgate.gate.state.model import FINAL_GOOD, Build, Item


class ProvidingJob(NamedTuple):
    """Represent a job of a change ahead that has provided artifacts."""

    number: int
    """Its place among all jobs ahead, furthest first."""
    item: Item
    job: FrozenJob
    build: Build


@dataclass(slots=True)
class Offer:
    """Describe what the changes ahead provide under one name."""

    waits: bool = False
    """Whether some of it is not available yet."""
    failed: str = ""
    """Why it will never be available, as a message; empty if it may be."""
    providers: list[ProvidingJob] = field(default_factory=list)


class Required(NamedTuple):
    """Describe what the changes ahead provide of all that one job requires; see `Offer`."""

    waits: bool
    failed: str
    offers: tuple[Offer, ...]

    @property
    def artifacts(self) -> tuple[dict[str, object], ...]:
        """Return the artifacts, furthest first, as far as `until_too_much`."""
        providers = {one.number: one for offer in self.offers for one in offer.providers}
        of = (provided_artifacts(one.build, one.job, one.item) for _, one in sorted(providers.items()))
        return tuple(until_too_much(artifact for found in of for artifact in found))


_NONE = Build("", "")
"""Stands for a build that has not begun."""


class Provisions:
    """Hold the offers of the items ahead to some jobs of one item.

    Each job ahead is read a single time for all of these jobs, not for each of them: a proposer chooses how many there
    are of both, and a job that waits asks again in every turn.
    """

    def __init__(self, jobs: Collection[FrozenJob], ahead: Sequence[Item], past: Past | None = None) -> None:
        """Find what `jobs` require of the items `ahead`, furthest first. An item that is not live is not tested here:
        `past` returns its latest buildset."""
        self._wanted = frozenset(name for job in jobs for name in job.requires)
        self._offers, self._unknown, self._count = dict[str, Offer](), False, 0
        for item in ahead if self._wanted else ():
            self._add(item, past)

    def _add(self, item: Item, past: Past | None) -> None:
        buildset = item.buildset if item.live else past(item.change) if past is not None else NOTHING_PROVIDED
        if buildset is None or buildset.graph is None:
            self._unknown = True  # it is not known yet what the item provides
            return
        for job in buildset.jobs:
            if names := self._wanted.intersection(job.provides):
                self._count += 1
                self._offer(ProvidingJob(self._count, item, job, buildset.builds.get(job.id, _NONE)), names)

    def _offer(self, one: ProvidingJob, names: Collection[str]) -> None:
        build, failed = one.build, ""
        waits = not (build.result or build.paused)
        if build.result and build.result not in FINAL_GOOD:
            of = one.item.subjects(one.job)[0].id
            failed = f"Job {one.job.name} of {of}, which provides what this one requires, failed"
        for name in names:
            offer = self._offers.setdefault(name, Offer())
            offer.waits, offer.failed = offer.waits or waits, offer.failed or failed
            if build.returned.artifacts and not failed:
                offer.providers.append(one)

    def required(self, job: FrozenJob) -> Required:
        """Return the offers to one of the jobs."""
        offers = tuple(found for name in job.requires if (found := self._offers.get(name)) is not None)
        failed = next((one.failed for one in offers if one.failed), "")
        waits = bool(job.requires) and (self._unknown or any(one.waits for one in offers))
        # After a failure, there is no point in waiting for the others.
        return Required(waits and not failed, failed, offers)


def provided_artifacts(build: Build, job: FrozenJob, item: Item) -> list[dict[str, object]]:
    """Return the artifacts of a build in the form in which later jobs receive them. Their origin is taken from the
    gate's record, as a job could claim another one."""
    zuul = build.data.get("zuul")
    found = zuul.get("artifacts") if build.returned.artifacts and isinstance(zuul, dict) else None
    change = item.subjects(job)[0]
    of = {"build": build.id, "job": job.name, "project": change.project, "branch": change.branch, "ref": change.ref}
    of |= {"change": change.name, "patchset": change.patchset or change.commit} if change.is_change else {}
    return [{**one, **of} for one in found or ()]
