"""Approve in the name of people on the pages; read by commands as well, so that it needs nothing of the pages."""

from __future__ import annotations

from typing import NamedTuple


class Speaker(NamedTuple):
    """Say how people approve on the pages for one connection."""

    auth: str
    """The section [auth NAME] whose names are those of the git server; empty: nobody can write remarks."""
    bound: bool
    """Whether the git server binds the names in notes to the account that pushes them."""
