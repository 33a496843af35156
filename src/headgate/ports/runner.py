"""Running one build."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headgate.gate.work import BuildOutcome, BuildSpec, RepoState


class Runner(Protocol):
    """Runs one build from checkout to result.

    `cancel` set means: kill everything the build started, and answer CANCELED.  Cancelling the coroutine
    does the same without an answer.  Whatever goes wrong is in the outcome; the runner raises nothing else."""

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event) -> BuildOutcome: ...
