"""Define how a machine reports that it cannot take another build."""

from __future__ import annotations

from typing import Protocol


class Load(Protocol):
    def refuses(self, running: int) -> str:
        """Return, for people, why no further build should start here now, or an empty string if one may."""
        ...


class Boundless:
    """Accept any load."""

    def refuses(self, running: int) -> str:
        return ""
