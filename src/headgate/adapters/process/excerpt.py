"""The lines of a log that say why a build failed, for reports that people read without opening the log."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from headgate.adapters.keys.censor import Censor
from headgate.base.texts import line as one_line

LINES_MAX = 4
LINE_MAX_CHARS = 200
LOOKED_AT_MAX_BYTES = 400
"""Length of a line's beginning that is examined."""
KEPT_MAX_BYTES = 10_000
"""Size above which a line is not shown, since it may have split a secret."""
_SUSPECT = re.compile(
    rb"^E   |\b[A-Z]\w*(?:Error|Exception)\b|\b(?i:error|fatal|panic): |\b(?:ERROR|FAILED|FAIL|FATAL)\b"
    rb"|^not ok\b|\*\*\* "
)
_HARMLESS = re.compile(rb"\(ignored\)|\b(?i:0 errors?|no errors?)\b")


class Excerpt:
    """Hear every line of output, and keep the few of one playbook that look like the reason of a failure."""

    def __init__(self) -> None:
        self.censor = Censor()
        """Knows every secret, even if the job shows them in its log: reports live longer and reach more people."""
        self._first: list[bytes] = []
        self._later = b""
        self._last: deque[bytes] = deque(maxlen=2)
        self._settled = False

    def begin(self) -> None:
        """Forget the lines of earlier playbooks; once one has failed, its lines stay."""
        if not self._settled:
            self._first, self._later = [], b""
            self._last.clear()

    def hear(self, lines: Iterable[bytes]) -> None:
        """Take in lines of output."""
        if self._settled:
            return
        for line in lines:
            start = line[:LOOKED_AT_MAX_BYTES]
            if len(line) > KEPT_MAX_BYTES or not start.strip():
                continue
            self._last.append(line)
            if _SUSPECT.search(start) and not _HARMLESS.search(start):
                # The first errors and the very last one: the cause tends to come first, and the summary at the end.
                if len(self._first) < LINES_MAX - 1:
                    self._first.append(line)
                else:
                    self._later = line

    def settle(self) -> None:
        """Keep the lines that were heard since `begin`, as this playbook failed."""
        self._settled = True

    def text(self) -> str:
        """Return at most `LINES_MAX` printable lines: those that name an error, else the last two.

        Secrets are removed; the text is empty if no playbook failed.
        """
        if not self._settled:
            return ""
        found = [*self._first, *([self._later] if self._later else [])] or list(self._last)
        # Censored now and not when heard: a secret may become known only after the line that has it.
        clear = (self.censor.line(one).decode(errors="replace").strip() for one in found)
        return "\n".join(one_line(one, LINE_MAX_CHARS) for one in clear)
