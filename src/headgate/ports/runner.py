"""Running one build."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from headgate.gate.work import BuildOutcome, BuildSpec, RepoState

Pause = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
"""Called with the data returned so far, JSON, when the job asks to be paused; answers when it is to go on.
Raises nothing; what keeps it from answering is a cancel."""


class Runner(Protocol):
    """Runs one build from checkout to result.

    `cancel` set means: kill everything the build started, and answer CANCELED.  Cancelling the coroutine
    does the same without an answer.  Whatever goes wrong is in the outcome; the runner raises nothing else."""

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, pause: Pause) -> BuildOutcome: ...
