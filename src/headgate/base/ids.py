"""Generate ids: random ones, and derived ones where the same input must always give the same id."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_BITS: ContextVar[Callable[[int], int]] = ContextVar("bits", default=secrets.randbits)
_SET, _VERSION_4 = 0xF000C000 << 48, 0x40008000 << 48
"""Mask of the bits that mark a UUID as random (version 4), and their values."""
_NAMESPACE = uuid.UUID("6f0c4d3e-0d5b-5a0e-9b39-1f1c8a7d2f10")


def fresh() -> str:
    """Return a random id, 32 hex digits."""
    return f"{_BITS.get()(128) & ~_SET | _VERSION_4:032x}"


@contextmanager
def drawn_from(bits: Callable[[int], int]) -> Iterator[None]:
    """Draw fresh ids from `bits` (which works like `secrets.randbits`) inside the context, so that a simulation is
    reproducible."""
    token = _BITS.set(bits)
    try:
        yield
    finally:
        _BITS.reset(token)


def derived(*parts: str) -> str:
    """Return the id of these parts: the same on every machine, 32 hex digits."""
    # NUL between the parts keeps ("a", "bc") and ("ab", "c") apart.
    return uuid.uuid5(_NAMESPACE, "\x00".join(parts)).hex
