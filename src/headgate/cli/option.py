"""An option of the settings file."""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    kind: str
    """Kind of value: text | path | number | seconds | integer | integer:least,most | flag | choice:a,b"""
    default: str
    doc: str
