"""Hints at one project: however many come, it is looked at once at a time, and rests in between."""

from __future__ import annotations

import asyncio

REST_S = 1.0
"""Shortest interval between the beginnings of two looks that hints request."""


class Hinted:
    """Collect hints. A look answers the hints that came before it started; later ones wait for the next."""

    def __init__(self, rest_s: float = REST_S) -> None:
        self._rest_s, self._ids = rest_s, list[str]()
        self._from: float | None = None
        """When the last look began, by the loop's clock; None before the first."""
        self._later: asyncio.TimerHandle | None = None

    def add(self, id: str, stirred: asyncio.Event | None) -> None:
        """Set `stirred` once it is time to look; None: a look will follow anyway."""
        self._ids.append(id)
        # A timer is running already; its look will answer this hint as well.
        if stirred is None or self._later is not None:
            return
        loop = asyncio.get_running_loop()
        if self._from is None or loop.time() >= self._from + self._rest_s:
            stirred.set()
        else:
            self._later = loop.call_at(self._from + self._rest_s, stirred.set)

    def taken(self) -> tuple[str, ...]:
        """Return the hints that the look which begins now answers."""
        self._from = asyncio.get_running_loop().time()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        ids, self._ids = tuple(self._ids), []
        return ids
