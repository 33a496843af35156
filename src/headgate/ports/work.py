"""Define who performs work: merging and checking out repositories, and running builds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildOutcome, BuildSpec, MergerAnswer, MergerWork, RepoState
from headgate.map.records import OwnMachine


class Unreachable(Exception):
    """Report that work on a repository cannot be done now, through no fault of the work: the repository cannot be
    reached, or the machine that does the work fails (its disk is full, its git is broken). A later attempt may
    succeed."""

    def __init__(self, project: str, why: str, answer: MergerAnswer, *, max_s: float = math.inf) -> None:
        """Explain to people, with `why`, what is the matter with the project. After `max_s` seconds, further attempts
        are of no use."""
        super().__init__(f"{project} {why}")
        self.project, self.why, self.answer, self.max_s = project, why, answer, max_s
        """`answer` is the answer for those who no longer wait."""


class GitWork(Protocol):
    """Perform the requests that a merger receives. Equal requests give equal answers and commit ids on every
    machine, and repeating one changes nothing. Failures of the outside world (a conflict, a refused push) are
    answers, not exceptions; only if a merge, a landing or a report cannot be performed now, Unreachable is raised."""

    async def do(self, work: MergerWork) -> MergerAnswer: ...


class CheckoutError(Exception):
    """Report that a repository cannot be checked out. `conflict` means that it did not merge and never will on this
    base."""

    def __init__(self, message: str, *, conflict: bool = False) -> None:
        super().__init__(message)
        self.conflict = conflict


class CheckedOut(NamedTuple):
    """Describe a work tree that was made."""

    commit: str
    """Commit that is checked out."""
    shares: tuple[Path, ...] = ()
    """Directories of git objects that the work tree needs and shares with others. Only this value tells which they are,
    whatever somebody writes into the tree later."""


class Checkout(Protocol):
    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        """Return the branches that can be checked out. Raise CheckoutError."""
        ...

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        """Make a work tree of `project` at `dest`, on `branch`.

        `speculative`: with the changes of the chain; otherwise as the branch was before them.  Without `files` there
        is the repository alone, as after `git clone --no-checkout`.  The branches of the
        project are there by name, there is no remote.  Raises CheckoutError, OSError.
        """
        ...


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


class Load(Protocol):
    def refuses(self, running: int) -> str:
        """Return, for people, why no further build should start here now, or an empty string if one may."""
        ...


class Boundless:
    """Accept any load."""

    def refuses(self, running: int) -> str:
        return ""
