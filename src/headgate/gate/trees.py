"""Describe the content of repositories by trees, regardless of commits.  Pure data."""

from __future__ import annotations

import msgspec


class Trees(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold what was found in the repositories that jobs with `reuse` are given, besides the merged ones."""

    heads: dict[str, dict[str, str]] = {}
    """project -> branch -> tree of its head, of every branch, before anything was merged."""
    bases: dict[str, dict[str, str]] = {}
    """project -> branch -> tree that the item's own change was merged onto."""
