"""The names of changes: which branch and topic a ref proposes, and which change a Depends-On footer means.

Branches and topics may both have slashes.  Of `<branch>/<topic>` the branch is the longest one there is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headgate.config.forges.footers import footers
from headgate.config.tenants import TenantProject

HEADS, FOR, APPROVED, RECHECK = "refs/heads/", "refs/for/", "refs/approved/", "refs/recheck/"
APPROVALS, VETOES, PROPOSERS = "refs/approvals/", "refs/vetoes/", "refs/proposers/"
"""Below each follows a person, then `<branch>/<topic>`; the server checks the person's name."""
TOPIC_LEVELS_MAX, TOPIC_MAX_BYTES = 20, 200
"""The same limits as in the hook, which refuses pushes of other topics."""


def statement_of(ref: str, kind: str) -> tuple[str, str] | None:
    """Return the person and `<branch>/<topic>` of a statement; None if the ref is not of this kind."""
    person, _, name = ref.removeprefix(kind).partition("/") if ref.startswith(kind) else ("", "", "")
    return (person, name) if person and name else None


class Names:
    """Name changes of the projects of one connection, by the branches last seen."""

    def __init__(self, projects: Iterable[TenantProject]) -> None:
        self._projects = {name: p.project for p in projects for name in (p.name, p.project)}
        """Short and canonical name -> canonical name."""
        canonical = set(self._projects.values())
        self._within = {one: [other for other in canonical if other.startswith(f"{one}/")] for one in canonical}
        """Project -> projects whose names begin with its name and a slash."""
        self._branches: dict[str, frozenset[str]] = {}
        self._above: dict[str, set[str]] = {}
        """Project -> its branches, and all prefixes of their names."""

    def saw(self, project: str, refs: Collection[str]) -> None:
        branches = frozenset(ref.removeprefix(HEADS) for ref in refs if ref.startswith(HEADS))
        if branches != self._branches.get(project):
            self._branches[project] = branches
            self._above[project] = {
                "/".join(parts[:n]) for b in branches if (parts := b.split("/")) for n in range(1, len(parts) + 1)
            }

    def misfit(self, project: str, name: str) -> str:
        """Return, for people, why `refs/for/<name>` proposes nothing and what to do, or an empty string if it does
        propose a change."""
        branch, topic = self.split(project, name)
        if not topic and name in self._above.get(project, ()):
            return (
                "with it there, nothing can be proposed below this name; remove it (git push <url> :<this ref>) and "
                f"push to {FOR}<branch>/<topic>"
            )
        if not topic:
            return f"for no branch that is there; push to {FOR}<branch>/<topic>"
        if not name.isprintable():
            return "there is in its name what cannot be shown; choose another topic"
        if topic.count("/") >= TOPIC_LEVELS_MAX or len(topic.encode()) > TOPIC_MAX_BYTES:
            return f"a topic has at most {TOPIC_LEVELS_MAX} levels and {TOPIC_MAX_BYTES} bytes; choose a shorter one"
        if any(f"{project}/{branch}/{topic}".startswith(f"{other}/") for other in self._within.get(project, ())):
            return "read with its project it is the name of a change of another project; choose another topic"
        return ""

    def split(self, project: str, name: str) -> tuple[str, str]:
        """Return branch and topic of `<branch>/<topic>`, or two empty strings if there is no such branch or no
        topic."""
        parts, branches = name.split("/"), self._branches.get(project, frozenset())
        # From the longest: with branches `a` and `a/b`, the name `a/b/c` is topic `c` of `a/b`.
        for cut in range(len(parts) - 1, 0, -1):
            branch, topic = "/".join(parts[:cut]), "/".join(parts[cut:])
            if branch in branches:
                return (branch, topic) if topic else ("", "")
        return "", ""

    def needs(self, message: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the keys of the changes that the footers name, and the footers that name no branch of our projects."""
        keys = [(footer, self._key(footer.strip("/"))) for footer in footers(message)]
        found = dict.fromkeys(key for _, key in keys if key)
        return tuple(found), tuple(dict.fromkeys(footer for footer, key in keys if not key))

    def _key(self, footer: str) -> str:
        parts = footer.split("/")
        for cut in range(len(parts) - 1, 0, -1):  # the longest name that is a project
            project = self._projects.get("/".join(parts[:cut]), "")
            branch, topic = self.split(project, "/".join(parts[cut:])) if project else ("", "")
            if topic:
                return f"{project}/{branch}/{topic}"
        return ""
