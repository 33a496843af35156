"""Keep what people are to look after, until they say that it is dealt with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Parted(msgspec.Struct, frozen=True):
    """Report a circle of several repositories of which only a part could land."""

    item: str
    """The id of its item."""
    landed: Mapping[str, str]
    """Key of a change -> the commit that its branch came to."""
    missing: tuple[str, ...]
    """Keys of those that have not landed."""
    since_ms: int


class Strayed(msgspec.Struct, frozen=True):
    """Report a change that landed as a tree other than the tested one."""

    key: str
    commit: str
    """What its branch came to, where that is known."""
    branch: str
    since_ms: int
