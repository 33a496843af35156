"""Speculative merging, and the forge behind a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from headgate.gate.change import Standing, TriggerEvent
from headgate.gate.work import MergerAnswer, MergerWork


class GitWork(Protocol):
    """Does what a merger is asked to do.  Same request, same answer and same commit ids, on every machine;
    done twice is as done once.  Failures of the world (a missing repository, a refused push) are answers,
    not exceptions."""

    async def do(self, work: MergerWork) -> MergerAnswer: ...


class Sighting(msgspec.Struct, frozen=True):
    """What a look at the repositories found: new standings of changes, and the events that tell of the difference.

    The two belong together: they are stored in one commit."""

    standings: tuple[Standing, ...] = ()
    """Changed or new; one with open=False is a change that is gone."""
    events: tuple[TriggerEvent, ...] = ()
    heads: dict[str, dict[str, str]] = {}
    """project -> ref -> commit, of every project whose branch heads moved."""


class Forge(Protocol):
    """A connection to where changes are proposed."""

    name: str

    def sightings(
        self, known: Mapping[str, Standing], heads: Mapping[str, Mapping[str, str]]
    ) -> AsyncIterator[Sighting]:
        """Compares the world with what is known (key -> standing; project -> ref -> commit), again whenever
        the world moves.  Level-triggered: what happened while nobody looked is found at the first look."""
        ...
