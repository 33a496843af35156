"""Speculative merging, and other work with git."""

from __future__ import annotations

import math
from typing import Protocol

from headgate.gate.work import MergerAnswer, MergerWork


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
