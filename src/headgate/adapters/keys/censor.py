"""Keeping secrets out of stored texts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from headgate.base.texts import uncoloured

SHORT_ENCODED = 8
"""Shortest base64 text that is censored; shorter texts occur in ordinary words."""
SHORT = 4
"""Shortest secret that is censored; shorter ones occur in ordinary words."""
REDACTED = "[redacted]"


def _forms(text: str) -> Iterator[str]:
    """Yield the forms in which programs show a text: as it is, in JSON, in Python, in addresses, in hexadecimal and in
    base64; only the last two for a text of several lines."""
    plain = text.encode("utf-8", "surrogateescape")
    if "\n" not in text:
        yield from (text, json.dumps(text)[1:-1], repr(text)[1:-1])
        yield from (quote(text, safe=""), quote(text), quote_plus(text))
    yield from (plain.hex(), plain.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):  # preceding bytes shift the encoding
            # base64 encodes three bytes in four characters: within a longer text a secret begins at any of three
            # offsets, and its first and last character mix with its neighbours' bits. These are cut off below.
            known = encode(b"\0" * before + plain).decode().rstrip("=")
            encoded = known[(before * 8 + 5) // 6 : (before + len(plain)) * 8 // 6]
            if len(encoded) >= SHORT_ENCODED:
                yield encoded


def _any_of(texts: Iterable[str]) -> str:
    """Return the pattern of any of these, the longest first. Those with a common beginning are matched together, so
    that text without that beginning costs next to nothing."""
    groups: dict[str, list[str]] = {}
    for text in sorted(texts, key=len, reverse=True):
        # For example `a(?:bc|b)|x(?:y)`. The longest first, or a shorter one would leave the rest of a longer one in
        # clear.
        groups.setdefault(text[0], []).append(re.escape(text[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in groups.items())


class Censor:
    """Find secrets in text that is to be stored, and remove them."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._bytes: re.Pattern[bytes] | None = None
        self.found = False
        """Whether any secret was found."""

    @property
    def size_max_bytes(self) -> int:
        """Return the size of the longest form that is searched; 0 if there is none."""
        return max((len(text.encode()) for text in self._texts), default=0)

    def learn(self, texts: Iterable[str]) -> None:
        known = len(self._texts)
        for text in texts:
            # Output is looked at line by line, so that a private key is found by each of its lines.
            wholes = (text, text.strip(), *(line.strip() for line in text.splitlines()))
            self._texts.update(form for one in dict.fromkeys(wholes) if len(one) >= SHORT for form in _forms(one))
        if len(self._texts) > known:
            pattern = _any_of(self._texts)
            self._known, self._bytes = re.compile(pattern), re.compile(pattern.encode())

    def line(self, line: bytes) -> bytes:
        """Return a line of output without secrets; also without colours if one of these contained a secret."""
        if self._bytes is None:
            return line
        cleared, count = self._bytes.subn(REDACTED.encode(), line)
        if b"\x1b" in cleared:  # a part of a secret may have another colour than the rest
            plain, more = self._bytes.subn(REDACTED.encode(), uncoloured(cleared))
            cleared, count = (plain if more else cleared), count + more
        self.found = self.found or count > 0
        return cleared

    def value(self, value: Any) -> Any:  # JSON
        """Return the JSON value without secrets, in names too: a mapping may have a secret as a key."""
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
