"""Tell which texts are numbers, as values of properties are texts."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_CACHED_MAX = 10_000


@lru_cache(_CACHED_MAX)
def number(text: str) -> Decimal | None:
    """Return the exact number; None for a text that is not a number, such as one with a unit."""
    # Decimal itself also accepts NaN, Infinity, underscores and digits of other scripts.
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def shown(number: Decimal) -> str:
    """Return the shortest text for the number, without an exponent where it is an integer of a usual size."""
    plain = number.normalize()
    return f"{plain:f}" if -20 < plain.adjusted() < 20 else str(plain)
