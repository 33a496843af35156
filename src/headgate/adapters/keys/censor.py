"""Keeping secrets out of what is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

SHORT = 4
"""Fewer characters are in many words: they are not looked for."""
REDACTED = "[redacted]"


class Censor:
    """Finds secrets in what is to be kept and takes them out."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._bytes: re.Pattern[bytes] | None = None
        self.found = False
        """Was there any?"""

    def learn(self, texts: Iterable[str]) -> None:
        lines = [line.strip() for text in texts for line in text.splitlines()]
        shown = [form for line in lines if len(line) >= SHORT for form in (line, json.dumps(line)[1:-1])]
        self._texts.update(shown)
        longest = sorted(self._texts, key=len, reverse=True)
        if longest:
            self._known = re.compile("|".join(map(re.escape, longest)))
            self._bytes = re.compile(b"|".join(re.escape(text.encode()) for text in longest))

    def line(self, line: bytes) -> bytes:
        if self._bytes is None:
            return line
        cleared, count = self._bytes.subn(REDACTED.encode(), line)
        self.found = self.found or count > 0
        return cleared

    def value(self, value: Any) -> Any:  # JSON
        """Names, too: a mapping may have a secret as a key."""
        if self._known is None:
            return value
        if isinstance(value, str):
            cleared, count = self._known.subn(REDACTED, value)
            self.found = self.found or count > 0
            return cleared
        if isinstance(value, dict):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return value
