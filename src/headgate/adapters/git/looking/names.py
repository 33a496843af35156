"""The names of changes: which branch and topic a ref proposes, and which change a Depends-On footer means.

Branches and topics may both have slashes.  Of `<branch>/<topic>` the branch is the longest one there is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from headgate.config.tenants import TenantProject

HEADS, FOR, APPROVED = "refs/heads/", "refs/for/", "refs/approved/"
_DEPENDS = re.compile(r"^Depends-On:[ \t]*(\S+)[ \t\r]*$", re.IGNORECASE | re.MULTILINE)


class Names:
    """Of the projects of one connection, by the branches last seen."""

    def __init__(self, projects: Iterable[TenantProject]) -> None:
        self._projects = {name: p.project for p in projects for name in (p.name, p.project)}
        """Short and canonical name -> canonical name."""
        self._branches: dict[str, frozenset[str]] = {}

    def saw(self, project: str, refs: Collection[str]) -> None:
        self._branches[project] = frozenset(ref.removeprefix(HEADS) for ref in refs if ref.startswith(HEADS))

    def split(self, project: str, name: str) -> tuple[str, str]:
        """Branch and topic of `<branch>/<topic>`; both empty when there is no such branch, or no topic."""
        parts, branches = name.split("/"), self._branches.get(project, frozenset())
        for cut in range(len(parts) - 1, 0, -1):
            branch, topic = "/".join(parts[:cut]), "/".join(parts[cut:])
            if branch in branches:
                return (branch, topic) if topic else ("", "")
        return "", ""

    def needs(self, message: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys of the changes the footers name, and the footers that name no branch of a project of ours."""
        keys = [(footer, self._key(footer.strip("/"))) for footer in _DEPENDS.findall(message)]
        found = dict.fromkeys(key for _, key in keys if key)
        return tuple(found), tuple(dict.fromkeys(footer for footer, key in keys if not key))

    def _key(self, footer: str) -> str:
        parts = footer.split("/")
        for cut in range(len(parts) - 1, 0, -1):  # the longest project there is
            project = self._projects.get("/".join(parts[:cut]), "")
            branch, topic = self.split(project, "/".join(parts[cut:])) if project else ("", "")
            if topic:
                return f"{project}/{branch}/{topic}"
        return ""
