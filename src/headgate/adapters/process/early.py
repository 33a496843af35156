"""Early signs that a build fails: a line of output that the job names, or a task of Ansible that has failed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import re2

from headgate.base.texts import line as one_line

TOKEN_VARIABLE = "HEADGATE_FAILING"
"""Variable with the text that our callback plugin prints, alone on a line, when a task has failed."""
MEMORY_MAX_BYTES = 1 << 20
"""Memory for all patterns of a job together."""
LOOKED_AT_MAX_BYTES = 4_000
"""Length of a line's beginning that is matched."""
TIME_MAX_S = 20.0
"""Time for matching all lines of one build, since other builds wait meanwhile."""
SHOWN_MAX = 200
_HOST = b" | "
"""Separates the host from the text in Ansible's output of a task."""


class _Pattern(Protocol):
    def search(self, text: str) -> object | None: ...


class PatternsTooLarge(Exception):
    """Report that the patterns of `failure-output` cannot be combined."""


class Early:
    """Inspect every line of a job's output. Once a line signals a failure, the build fails, whatever follows."""

    def __init__(self, patterns: Sequence[str], on_failure: Callable[[], None]) -> None:
        """Prepare to call `on_failure` once, at the first sign.  Raise PatternsTooLarge."""
        # Random, since a program of the job could otherwise print the line itself.
        self.token = secrets.token_hex(16)
        self.why = ""
        """Reason for people; empty while there is no sign of failure."""
        self._on_failure, self._spent_s = on_failure, 0.0
        self._armed = self._ansible = False
        self._pattern = _together(patterns) if patterns else None

    def begins(self, *, counts: bool, ansible: bool) -> None:
        """Note the start of a playbook; `counts` says whether its failure fails the build."""
        self._armed, self._ansible = counts, ansible

    def sift(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines for people, after looking for signs in them."""
        if self._ansible and (token := self.token.encode()) in lines:
            lines = [line for line in lines if line != token]
            self._sign("a task failed")
        if self._armed and not self.why and self._pattern is not None:
            began = time.perf_counter()
            self._look(lines)
            self._spent_s += time.perf_counter() - began
            if self._spent_s > TIME_MAX_S:
                self._sign(f"its failure-output took more than {TIME_MAX_S:.0f} s to be looked for")
        return lines

    def _look(self, lines: list[bytes]) -> None:
        for line in lines:
            # Patterns speak of a program's line, and not of the host that Ansible puts in front.
            content = line.partition(_HOST)[2] if self._ansible else line
            text = content[:LOOKED_AT_MAX_BYTES].decode(errors="replace").rstrip("\r")
            if text and self._pattern is not None and self._pattern.search(text):
                self._sign(f'its output matches failure-output: "{one_line(text, SHOWN_MAX)}"')
                return

    def _sign(self, why: str) -> None:
        if self._armed and not self.why:
            self.why = why
            self._on_failure()


def _together(patterns: Sequence[str]) -> _Pattern:
    """Combine the patterns into one, so that the cost of a line does not grow with their number. Raise
    PatternsTooLarge."""
    options = re2.Options()
    options.log_errors = False
    # re2 matches in linear time, so that no pattern of a job can hang the executor; its memory needs this limit.
    options.max_mem = MEMORY_MAX_BYTES
    try:
        found: _Pattern = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), options)
    except re2.error as error:
        raise PatternsTooLarge(
            "the patterns of its failure-output are too large together; write fewer, or simpler"
        ) from error
    return found
