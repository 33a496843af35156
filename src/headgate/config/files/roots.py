"""Determine which files of a branch contain configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STANDARD_PATHS = ("zuul.yaml", "zuul.d/", ".zuul.yaml", ".zuul.d/")
"""Roots of a project's configuration; the first one that exists counts."""
IGNORE = ".zuul.ignore"
"""Name of a file that excludes its directory, and everything below it, from the configuration."""


class Roots(NamedTuple):
    read: tuple[str, ...]
    """Files in the order in which they are read."""
    spurned: tuple[str, ...]
    """First file of each root that is ignored because an earlier root exists."""


def roots(files: Iterable[str], extra: Iterable[str]) -> Roots:
    """Return the configuration files among `files`. `extra` names further files, and directories with a trailing slash,
    that are read, too."""
    files = list(files)
    ignored = tuple(path.removesuffix(IGNORE) for path in files if path.endswith(f"/{IGNORE}"))
    # With an empty tuple, `startswith` is false for every path.
    usable = sorted(path for path in files if not path.startswith(ignored))
    known = set(usable)

    def under(root: str) -> list[str]:
        if not root.endswith("/"):
            return [root] if root in known else []
        return [path for path in usable if path.startswith(root) and path.endswith(".yaml")]

    found = [paths for root in STANDARD_PATHS if (paths := under(root))]
    chosen = found[0] if found else []
    chosen = chosen + [path for root in extra for path in under(root)]
    return Roots(tuple(dict.fromkeys(chosen)), tuple(paths[0] for paths in found[1:]))


def touches(files: Iterable[str], extra: Iterable[str]) -> bool:
    """Return whether a change of these files changes the configuration."""
    return any(_is_at(path, root) for root in (*STANDARD_PATHS, *extra) for path in files)


def _is_at(path: str, root: str) -> bool:
    if not root.endswith("/"):
        return path == root
    return path.startswith(root) and (path.endswith(".yaml") or path.endswith(f"/{IGNORE}"))
