"""Determine how long to wait for an answer.

Briefly: etcd leaves what it passed on to a leader that died unanswered for longer than it takes to elect another.
A store that is only slow must not be taken for silent for ever: after a silence the next answers are given more time.
"""

from __future__ import annotations

SHORT_S = 2.0
LONG_S = 10.0
SLOW_FOR_S = 60.0
"""A store that was silent is taken to be slow for this long."""
SLOWEST_BYTES_PER_S = 100_000
"""What is large may take longer to send."""


class Patience:
    def __init__(self) -> None:
        self._limit_s = SHORT_S
        self._until_s = 0.0

    def limit_s(self, size_bytes: int, now_s: float) -> float:
        """Return how many seconds to wait for the answer to a request of this size."""
        if now_s > self._until_s:
            self._limit_s = SHORT_S
        return min(self._limit_s + size_bytes / SLOWEST_BYTES_PER_S, LONG_S)

    def missed(self, limit_s: float, now_s: float) -> None:
        """Record that no answer came within this time. Several at once count as one."""
        self._limit_s = max(self._limit_s, min(2 * limit_s, LONG_S))
        self._until_s = now_s + SLOW_FOR_S
