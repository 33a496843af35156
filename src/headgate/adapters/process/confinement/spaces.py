"""Namespaces that commands are started in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Spaces = Mapping[str, int]
"""Kind -> descriptor; `user` comes before `net`."""
NOWHERE_ELSE: Spaces = {}


@dataclass(frozen=True, slots=True)
class Network:
    """Represent the network of a command."""

    spaces: Spaces = field(default_factory=dict)
    """Where it is started."""
    cut: bool = False
    """Whether bubblewrap is to take the network away, because nothing else can."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content, of files that tell of the network."""
