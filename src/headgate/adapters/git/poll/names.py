"""Parse the names of refs: changes, people's statements on them, and unusable refs.

Branches and topics may both have slashes: the branch of `<branch>/<topic>` is the longest one that exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headgate.adapters.git.objects import shown_name
from headgate.config.forges.facts import Word
from headgate.config.forges.footers import footers
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import ChangeState

HEADS, FOR, APPROVED, RECHECK = "refs/heads/", "refs/for/", "refs/approved/", "refs/recheck/"
APPROVALS, VETOES, PROPOSERS = "refs/approvals/", "refs/vetoes/", "refs/proposers/"
"""A person follows, then `<branch>/<topic>`; the server checks the person's name."""
TOPIC_LEVELS_MAX, TOPIC_MAX_BYTES = 20, 200
"""The same limits as in the hook, which refuses pushes of other topics."""
SHOWN_MAX = 5
"""Maximum number of refs that a message names for one reason."""
REASONS_MAX = 5
NAME_MAX_CHARS = 300
PEOPLE_MAX = 100
"""Maximum number of people whose statements on one change count; those of further people are ignored."""
APPROVES_NOTHING = "it approves a change that nobody has proposed"


def statement_of(ref: str, kind: str) -> tuple[str, str] | None:
    """Return the person and `<branch>/<topic>` of a statement; None if the ref is not of this kind."""
    person, _, name = ref.removeprefix(kind).partition("/") if ref.startswith(kind) else ("", "", "")
    return (person, name) if person and name else None


class Names:
    """Find the changes that names mean in the projects of one connection, given the branches of the last poll."""

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
        # Branches seldom change, and finding all prefixes takes time.
        if branches != self._branches.get(project):
            self._branches[project] = branches
            self._above[project] = {
                "/".join(parts[:n]) for b in branches if (parts := b.split("/")) for n in range(1, len(parts) + 1)
            }

    def misfit(self, project: str, name: str) -> str:
        """Return a message why `refs/for/<name>` proposes nothing and what to do; empty if it does propose a change."""
        branch, topic = self.split(project, name)
        if not topic and name in self._above.get(project, ()):
            return (
                "while this ref exists, nothing can be proposed below it; remove it (git push <url> :<this ref>) and "
                f"push to {FOR}<branch>/<topic>"
            )
        if not topic and not self._branches.get(project):
            return "the repository has no branches yet; push the first commit to one, such as refs/heads/main"
        if not topic:
            return f"it names no existing branch; push to {FOR}<branch>/<topic>"
        if not name.isprintable():
            return "its name has characters that cannot be shown; choose another topic"
        if topic.count("/") >= TOPIC_LEVELS_MAX or len(topic.encode()) > TOPIC_MAX_BYTES:
            return f"a topic has at most {TOPIC_LEVELS_MAX} levels and {TOPIC_MAX_BYTES} bytes; choose a shorter one"
        if any(f"{project}/{branch}/{topic}".startswith(f"{other}/") for other in self._within.get(project, ())):
            return "together with its project, this is the name of a change of another project; choose another topic"
        return ""

    def split(self, project: str, name: str) -> tuple[str, str]:
        """Return branch and topic of `<branch>/<topic>`, or two empty strings if there is no such branch or no
        topic."""
        parts, branches = name.split("/"), self._branches.get(project, frozenset())
        # Try the longest branch first: with branches `a` and `a/b`, the name `a/b/c` is topic `c` of `a/b`.
        for cut in range(len(parts) - 1, 0, -1):
            branch, topic = "/".join(parts[:cut]), "/".join(parts[cut:])
            if branch in branches:
                return (branch, topic) if topic else ("", "")
        return "", ""

    def needs(self, message: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the keys of the changes that the footers name, and the footers that name no branch of these
        projects.
        """
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


class Misfits:
    """Collect the unusable refs of one repository by reason."""

    def __init__(self) -> None:
        self._refs: dict[str, list[str]] = {}

    def add(self, ref: str, why: str) -> None:
        self._refs.setdefault(why, []).append(ref)

    @property
    def text(self) -> str:
        """Describe the unusable refs; empty if there are none."""
        reasons = [_reason(why, refs) for why, refs in list(self._refs.items())[:REASONS_MAX]]
        more = sum(map(len, list(self._refs.values())[REASONS_MAX:]))
        return "\n".join([*reasons, *([f"{more} more refs cannot be used for other reasons"] if more else [])])


def _reason(why: str, refs: list[str]) -> str:
    shown = [_shown(ref) for ref in sorted(refs)[:SHOWN_MAX]]
    more = f" and {len(refs) - SHOWN_MAX} more" if len(refs) > SHOWN_MAX else ""
    return f"{', '.join(shown)}{more}: {why}"


def _shown(ref: str) -> str:
    name = shown_name(ref)
    return name if len(name) <= NAME_MAX_CHARS else f"{name[:NAME_MAX_CHARS]}…"


class RefStatements:
    """Read the statements on all changes of a repository from its current refs."""

    def __init__(self, refs: Mapping[str, str], now_ms: int) -> None:
        self._now_ms = now_ms
        self._words: dict[str, dict[str, list[Word]]] = {kind: {} for kind in (APPROVALS, VETOES, PROPOSERS)}
        """Kind of statement -> name of the proposal -> its statements."""
        for kind, found in self._words.items():
            for ref, commit in refs.items():
                if (statement := statement_of(ref, kind)) is not None:
                    found.setdefault(statement[1], []).append(Word(statement[0], commit, ref, now_ms))

    def of(
        self, name: str, commit: str, known: ChangeState | None
    ) -> tuple[tuple[Word, ...], tuple[Word, ...], tuple[str, ...]]:
        """Return approvals, vetoes, and the author of this commit. Known statements keep the time at which they were
        first seen."""
        approvals = self._since(APPROVALS, name, known.approvals if known is not None else ())
        vetoes = self._since(VETOES, name, known.vetoes if known is not None else ())
        proposers = sorted({word.who for word in self._words[PROPOSERS].get(name, ()) if word.commit == commit})
        return approvals, vetoes, tuple(proposers[:PEOPLE_MAX])

    def _since(self, kind: str, name: str, known: Collection[Word]) -> tuple[Word, ...]:
        first = {(word.ref, word.commit): word for word in known}
        words = sorted(self._words[kind].get(name, ()), key=lambda word: word.ref)[:PEOPLE_MAX]
        # A statement keeps its time only while it does not move: a vote on a new patchset is a new vote.
        return tuple(first.get((word.ref, word.commit), word) for word in words)

    def lost(self, proposed: Collection[str], misfits: Misfits) -> None:
        """Add the statements that belong to no proposal to `misfits`."""
        # A proposer's ref without a proposal does no harm.
        for kind in (APPROVALS, VETOES):
            for name, words in self._words[kind].items():
                for word in words if name not in proposed else ():
                    misfits.add(word.ref, f"there is no such change; propose it (push to {FOR}{name}), or remove this")


def gained(now: ChangeState, before: ChangeState | None) -> bool:
    """Return whether somebody newly approves this patchset, or has withdrawn a veto on an approved one."""
    relieved = before is not None and bool(before.vetoes) and not now.vetoes
    if now.open and relieved and (now.approvals or now.is_approved):
        return True
    had = {word.who for word in before.approvals if word.commit == now.change.commit} if before is not None else set()
    return now.open and any(w.commit == now.change.commit and w.who not in had for w in now.approvals)


def orphans(
    refs: Mapping[str, str], project: str, names: Names, now: Iterable[ChangeState], misfits: Misfits
) -> dict[str, str]:
    """Return the refs that approve nothing, with their commits, except for landed changes, and add them to `misfits`.
    `now`: known changes, the latest last."""
    found: dict[str, str] = {}
    known = {change_state.change.key: change_state for change_state in now}
    for ref, commit in refs.items():
        name = ref.removeprefix(APPROVED)
        if name == ref or FOR + name in refs or names.misfit(project, name):
            continue
        branch, topic = names.split(project, name)
        landed_state = known.get(f"{project}/{branch}/{topic}")
        # If the server allows nobody to delete refs, the approval outlives the landing.
        if landed_state is not None and landed_state.landed and landed_state.change.commit == commit:
            continue
        found[ref] = commit
        misfits.add(ref, f"{APPROVES_NOTHING}; push it to {FOR}{name}, or remove this ref")
    return found
