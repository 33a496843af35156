"""Define alarms: what people have to look after, until they say that it is dealt with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Parted(msgspec.Struct, frozen=True):
    """Report a circle of several repositories of which only a part could land."""

    item: str
    """The id of its item."""
    landed: Mapping[str, str]
    """Key of a change -> head of its branch after it landed."""
    missing: tuple[str, ...]
    """Keys of the changes that have not landed."""
    since_ms: int


class Strayed(msgspec.Struct, frozen=True):
    """Report a change that landed as a tree other than the tested one."""

    key: str
    commit: str
    """Head of its branch after it landed; empty if unknown."""
    branch: str
    since_ms: int
