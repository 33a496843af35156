"""Running one build."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from headgate.gate.returns.secrets import Sealed
from headgate.gate.work import BuildOutcome, BuildSpec, RepoState
from headgate.map.records import OwnMachine


class Contact(Protocol):
    """Let a running build ask the gate. Nothing is raised; a cancellation ends a call without an answer."""

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        """Pause the job, with the data returned so far (JSON) and the secret data; return when it may continue."""
        ...

    def begun(self) -> None:
        """Note that the first command of the build is about to start and the preparation is done. Return at once."""
        ...

    def fails(self) -> None:
        """Note that the build will fail although it still runs. Return at once."""
        ...

    def holding(
        self, semaphores: Sequence[str], cancel: asyncio.Event, limit_s: float
    ) -> AbstractAsyncContextManager[bool]:
        """Hold all of the semaphores while the context lasts. Yield False if `cancel` was set or the time ran out
        first."""
        ...

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        """Decide, at the end of a build and while its directory and the runner's own machines still exist, whether to
        keep them for people. If somebody asked for such builds to be held, return the text that people read about it,
        otherwise an empty string. The runner learns through `BuildHolding` what to keep before this returns."""
        ...


class BuildHolding(Protocol):
    """Keep what held builds used until their hold ends."""

    async def keep(self, builds: Collection[str], machines: Collection[str]) -> None:
        """Keep the work directories of these builds, and give these machines to nobody; give back everything else that
        was kept before. What is named is kept from the moment of the call."""
        ...


class OwnMachines(Protocol):
    """List the machines of the runner itself, and the build that has each."""

    def listed_now(self) -> tuple[OwnMachine, ...]:
        """Return the machines as they are now, sorted by name."""
        ...

    async def changed(self, seen: tuple[OwnMachine, ...]) -> tuple[OwnMachine, ...]:
        """Return the machines once they differ from `seen`."""
        ...


class Runner(Protocol):
    """Run one build from checkout to result.

    `cancel` set means: kill everything the build started, and answer CANCELED.  Cancelling the coroutine
    does the same without an answer.  Whatever goes wrong is in the outcome; the runner raises nothing else.
    """

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome: ...
