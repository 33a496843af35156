"""What a machine can bear."""

from __future__ import annotations

from typing import Protocol


class Load(Protocol):
    def refuses(self, running: int) -> str:
        """Why no further build should be begun here just now, for people; empty when one may."""
        ...


class Boundless:
    """Bears everything."""

    def refuses(self, running: int) -> str:
        return ""
