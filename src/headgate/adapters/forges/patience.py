"""Limit how long something may be under way at a forge before that is not an answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

KEPT_MAX = 1_000


class ForgePatience:
    """Remember since when something is awaited."""

    def __init__(self, seconds: float, now_s: Callable[[], float]) -> None:
        self._seconds, self._now_s = seconds, now_s
        self._since: OrderedDict[str, float] = OrderedDict()

    def lasts(self, key: str) -> bool:
        """Say whether it may still be waited for; once it may not, the next time begins anew."""
        now_s = self._now_s()
        since_s = self._since.setdefault(key, now_s)
        while len(self._since) > KEPT_MAX:
            self._since.popitem(last=False)
        if now_s - since_s <= self._seconds:
            return True
        self.forget(key)
        return False

    def forget(self, key: str) -> None:
        """Wait for it no more."""
        self._since.pop(key, None)
