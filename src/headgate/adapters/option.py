"""Describe the options of connections in the settings file; drivers declare theirs with this."""

from __future__ import annotations

from typing import NamedTuple


class ConnectionOption(NamedTuple):
    """Declare an option of a connection's section."""

    kind: str
    """text | path | number | seconds | integer | integer:least,most | flag | choice:a,b"""
    default: str
    doc: str
