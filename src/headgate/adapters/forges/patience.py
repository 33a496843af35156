"""Limit how long an operation may be in progress at a forge."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

KEPT_MAX = 1_000


class ForgePatience:
    """Remember since when each result is awaited."""

    def __init__(self, seconds: float, now_s: Callable[[], float]) -> None:
        self._seconds, self._now_s = seconds, now_s
        self._since: OrderedDict[str, float] = OrderedDict()

    def lasts(self, key: str) -> bool:
        """Tell whether to continue to wait; after it has refused, the next wait starts again."""
        now_s = self._now_s()
        since_s = self._since.setdefault(key, now_s)
        while len(self._since) > KEPT_MAX:
            self._since.popitem(last=False)
        if now_s - since_s <= self._seconds:
            return True
        self.forget(key)
        return False

    def forget(self, key: str) -> None:
        """Stop waiting for it."""
        self._since.pop(key, None)
