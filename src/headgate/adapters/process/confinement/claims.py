"""Numbers of which each is used by one process of this machine at a time."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberClaim:
    """Hold a number that no other process of this machine has, until `close` or the end of the process."""

    number: int
    _held: socket.socket

    def close(self) -> None:
        self._held.close()


def claim(kind: str, number: int) -> NumberClaim | None:
    """Claim a number, or return None if another process has it. The name of a socket is the claim, so the kernel
    releases it in every case."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # The leading NUL makes the name abstract: it lies in no directory, so no file stays behind after a kill.
        held.bind(f"\0headgate/{kind}/{number}")
    except OSError:
        held.close()
        return None
    return NumberClaim(number, held)


def claim_any(kind: str, first: int, count: int, fits: Callable[[int], bool] = lambda _: True) -> NumberClaim | None:
    """Claim a free number from `first` on that fits; None if there is none. The search begins at a random place, so
    that a number that was just released is not taken at once."""
    begin = secrets.randbelow(count)
    for step in range(count):
        number = first + (begin + step) % count
        found = claim(kind, number)
        if found is None:
            continue
        # Asked only while the claim is held: before it, another executor could take the number after the answer.
        if fits(number):
            return found
        found.close()
    return None
