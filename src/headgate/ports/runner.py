"""Running one build."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from headgate.gate.returns.secrets import Sealed
from headgate.gate.work import BuildOutcome, BuildSpec, RepoState


class Contact(Protocol):
    """What a build under way may ask of the gate.  Raises nothing; what keeps it from answering is a cancel."""

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        """Asked when the job wants to be paused, with the data returned so far, JSON, and the secret data; answers when
        it is to go on."""
        ...

    def begun(self) -> None:
        """Called once the first command of the build is about to start: what prepares it is done.  Returns at once."""
        ...

    def fails(self) -> None:
        """Called once it is known that the build will fail, while it still runs.  Returns at once."""
        ...

    def holding(
        self, semaphores: Sequence[str], cancel: asyncio.Event, limit_s: float
    ) -> AbstractAsyncContextManager[bool]:
        """All of them, for as long as the context lasts.  False: `cancel` was set, or the time was up, before."""
        ...

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        """Asked once a build has ended, while all that it used is still there: its directory, and machines of the
        runner's own.  Return what people are told of it when somebody asked for such builds to be held, else an empty
        text.  What is held the runner is told through `BuildHolding` before this returns."""
        ...


class BuildHolding(Protocol):
    """Keeps what held builds used until it is told otherwise."""

    async def keep(self, builds: Collection[str], machines: Collection[str]) -> None:
        """Keep the work directories of these builds, and give these machines to nobody; give back what was kept before
        and is not named any more.  What is named is kept from the moment of the call."""
        ...


class Runner(Protocol):
    """Runs one build from checkout to result.

    `cancel` set means: kill everything the build started, and answer CANCELED.  Cancelling the coroutine
    does the same without an answer.  Whatever goes wrong is in the outcome; the runner raises nothing else."""

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome: ...
