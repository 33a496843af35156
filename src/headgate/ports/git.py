"""Speculative merging, and the forge behind a connection."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from headgate.config.tenants import TenantProject
from headgate.gate.change import Standing, TriggerEvent
from headgate.gate.work import MergerAnswer, MergerWork


class Unreachable(Exception):
    """Work on a repository cannot be done now, for no fault of the work: the repository cannot be reached, or whoever
    does the work cannot (his disk is full, his git is broken).  Asked again later it may be done."""

    def __init__(self, project: str, why: str, answer: MergerAnswer, *, max_s: float = math.inf) -> None:
        """`why`, for people: what is the matter with the project.  `max_s`: longer it is of no use to ask again."""
        super().__init__(f"{project} {why}")
        self.project, self.why, self.answer, self.max_s = project, why, answer, max_s
        """The answer, for those who will not wait any longer."""


class GitWork(Protocol):
    """Does what a merger is asked to do.  Same request, same answer and same commit ids, on every machine;
    done twice is as done once.  Failures of the world (a conflict, a refused push) are answers, not exceptions;
    but Unreachable is raised while a merge, a landing or a report cannot be done."""

    async def do(self, work: MergerWork) -> MergerAnswer: ...


class Sighting(msgspec.Struct, frozen=True):
    """What a look at the repositories found: new standings of changes, and the events that tell of the difference.

    The two belong together: they are stored in one commit."""

    standings: tuple[Standing, ...] = ()
    """Changed or new; one with open=False is a change that is gone."""
    events: tuple[TriggerEvent, ...] = ()
    heads: dict[str, dict[str, str]] = {}
    """project -> ref -> commit, of every project whose branch heads moved."""
    refs: dict[str, dict[str, str]] = {}
    """project -> tag or other ref -> what it names now, of those that moved; empty: it is gone.  Also of a project that
    was looked at for the first time, with all that it has: of those no event tells."""
    lingering: dict[str, frozenset[str]] = {}
    """project -> keys of closed changes whose refs are still there, of every project looked at: to be remembered, or
    they would seem to be proposed anew."""
    troubles: dict[str, str] = {}
    """project -> what is wrong with its repository now, for people; empty: nothing any more."""


class Forge(Protocol):
    """A connection to where changes are proposed."""

    name: str

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Say which projects there are, by canonical name: what is looked at from the next call of `sightings` on."""
        ...

    def sightings(
        self,
        known: Mapping[str, Standing],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Compares the world with what is known (key -> standing; project -> branch -> commit; project -> other ref ->
        what it names), again whenever the world moves.  Level-triggered: what happened while nobody looked is found at
        the first look."""
        ...
