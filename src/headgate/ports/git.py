"""Speculative merging, and what else is done with git."""

from __future__ import annotations

import math
from typing import Protocol

from headgate.gate.work import MergerAnswer, MergerWork


class Unreachable(Exception):
    """Work on a repository cannot be done now, for no fault of the work: the repository cannot be reached, or whoever
    does the work cannot (his disk is full, his git is broken).  Asked again later it may be done."""

    def __init__(self, project: str, why: str, answer: MergerAnswer, *, max_s: float = math.inf) -> None:
        """Explain to people, with `why`, what is the matter with the project. After `max_s` it is of no use to ask
        again."""
        super().__init__(f"{project} {why}")
        self.project, self.why, self.answer, self.max_s = project, why, answer, max_s
        """The answer, for those who will not wait any longer."""


class GitWork(Protocol):
    """Perform the requests that a merger receives. Equal requests give equal answers and commit ids on every
    machine, and repeating one changes nothing. Failures of the outside world (a conflict, a refused push) are
    answers, not exceptions; only if a merge, a landing or a report cannot be performed now, Unreachable is raised."""

    async def do(self, work: MergerWork) -> MergerAnswer: ...
