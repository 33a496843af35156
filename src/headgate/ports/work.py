"""Define the interfaces that perform work: merging and checking out repositories, and running builds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headgate.base.errors import RepositoryError
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildOutcome, BuildSpec, MergerAnswer, MergerWork, RepoState
from headgate.map.records import OwnMachine


class Unreachable(RepositoryError):
    """Report that work on a repository cannot be done now, but that a later attempt may succeed. The repository is
    unreachable, or the machine that does the work fails (its disk is full, its git is broken)."""

    def __init__(self, project: str, why: str, answer: MergerAnswer, *, max_s: float = math.inf) -> None:
        """Create the error; `why` is a message about the project. After `max_s` seconds, further attempts are
        useless."""
        super().__init__(f"{project} {why}")
        self.project, self.why, self.answer, self.max_s = project, why, answer, max_s
        """`answer` is the answer to give once no further attempt is made."""


class GitWork(Protocol):
    """Perform the requests that a merger receives. Equal requests give equal answers and commit ids on every
    machine, and repeating one changes nothing. Failures of the outside world (a conflict, a refused push) are
    answers, not exceptions; only if a merge, a landing or a report cannot be performed now, Unreachable is raised."""

    async def do(self, work: MergerWork) -> MergerAnswer: ...


class CheckoutError(RepositoryError):
    """Report that a repository cannot be checked out. `conflict` means that it does not merge on this base, now or
    later."""

    def __init__(self, message: str, *, conflict: bool = False) -> None:
        super().__init__(message)
        self.conflict = conflict


class CheckedOut(NamedTuple):
    """Describe a work tree that was made."""

    commit: str
    """Commit that is checked out."""
    shares: tuple[Path, ...] = ()
    """Directories of git objects that the work tree needs and shares with others. Trust only this value: a build may
    write other paths into the tree later."""


class Checkout(Protocol):
    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        """Return the branches that can be checked out. Raise CheckoutError."""
        ...

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        """Make a work tree of `project` at `dest`, on `branch`.

        `speculative`: with the changes of the chain; otherwise as the branch was before them.  Without `files`, only
        the repository is made, as by `git clone --no-checkout`.  The repository has the branches of the project by
        name, and no remote.  Raise CheckoutError, OSError.
        """
        ...


class Contact(Protocol):
    """Let a running build communicate with the gate. No method raises; a cancellation ends a call without an answer."""

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        """Pause the job, with the data returned so far (JSON) and the secret data; return when it may continue."""
        ...

    def begun(self) -> None:
        """Report that the preparation is done and the first command of the build is about to start. Return
        immediately."""
        ...

    def fails(self) -> None:
        """Report that the build is certain to fail, although it still runs. Return immediately."""
        ...

    def holding(
        self, semaphores: Sequence[str], cancel: asyncio.Event, limit_s: float
    ) -> AbstractAsyncContextManager[bool]:
        """Hold all of the semaphores while the context lasts. Yield False if `cancel` was set or the time ran out
        first."""
        ...

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        """Decide, at the end of a build and while its directory and the runner's own machines still exist, whether to
        keep them for people. If there is a request to hold such builds, return a message about it,
        otherwise an empty string. Before this returns, `BuildHolding` tells the runner what to keep."""
        ...


class BuildHolding(Protocol):
    """Keep what held builds used until their hold ends."""

    async def keep(self, builds: Collection[str], machines: Collection[str]) -> None:
        """Keep the work directories of these builds, and give these machines to no other build, from the moment of the
        call on; release everything else that was held before."""
        ...


class OwnMachines(Protocol):
    """List the runner's own machines, and the build that uses each."""

    def listed_now(self) -> tuple[OwnMachine, ...]:
        """Return the machines as they are now, sorted by name."""
        ...

    async def changed(self, seen: tuple[OwnMachine, ...]) -> tuple[OwnMachine, ...]:
        """Return the machines once they differ from `seen`."""
        ...


class Runner(Protocol):
    """Run one build from checkout to result.

    When `cancel` is set, kill everything that the build started, and answer CANCELED.  Cancelling the coroutine does
    the same without an answer.  Every failure is part of the outcome; the runner raises nothing.
    """

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome: ...


class Load(Protocol):
    def refuses(self, running: int) -> str:
        """Return a message about why no more builds should start here now; empty if one may start."""
        ...


class Boundless:
    """Accept any load."""

    def refuses(self, running: int) -> str:
        return ""
