"""Namespaces that commands are started in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Spaces = Mapping[str, int]
"""Kind -> descriptor; `user` precedes `net`."""
NOWHERE_ELSE: Spaces = {}


@dataclass(frozen=True, slots=True)
class Network:
    """Represent the network of a command."""

    spaces: Spaces = field(default_factory=dict)
    """Namespaces that commands start in."""
    cut: bool = False
    """Whether bubblewrap removes the network, because nothing else can."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content of a file that describes the network."""
