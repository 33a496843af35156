"""Group errors by cause: one mistake, with all the errors that follow from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from headgate.config.check.findings import CheckedGraph, GraphFinding
from headgate.config.definitions import Place
from headgate.config.files.document import load
from headgate.config.files.source import Wrong
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.config.parse import ParsedBranch

_STANZA = re.compile(r" *- +([a-z-]+):")
_NAME = re.compile(r"(?:^ +|[{,] *)name: *([^,}\n]+)", re.MULTILINE)
# Errors are texts without codes; these follow the texts of `assembly.references` and `freeze`.
_MISSING = tuple(
    re.compile(text)
    for text in (
        r"the (?:parent )?(job)(?: it depends on,)? '([^']+)' is not defined",
        r"there is no ([a-z-]+) '([^']+)'",
        r"the (nodeset|secret|image|queue|semaphore) '([^']+)' is not (?:defined|declared)",
        r"the (project) '([^']+)' is not in this tenant",
    )
)
_NEEDED = re.compile(r"(job) \S+ depends on (\S+), which is not")
_OWN = ("secret", "image")
"""Kinds of stanzas whose names are separate in each project."""
DEPTH_MAX = 20
"""Longest chain of causes from an error to its first cause."""


class Cause(NamedTuple):
    """Represent one thing to fix."""

    error: ConfigError
    """The error at the first place where it occurs."""
    alike: tuple[ConfigError, ...]
    """Equal errors in the same file on other branches."""
    also: tuple[ConfigError, ...]
    """Errors at other places that miss the same definition."""
    follow: tuple[ConfigError, ...]
    """Errors that disappear when this one is corrected."""
    graphs: tuple[CheckedGraph, ...]
    """Job graphs that this error makes impossible: none of their jobs run."""

    @property
    def weight(self) -> int:
        """Return the number of errors and graphs that depend on it."""
        return len(self.also) + len(self.follow) + len(self.graphs)

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return (self.error, *self.alike, *self.also, *self.follow)


Root = tuple[str, ...]


def causes(found: Iterable[GraphFinding], lost: Mapping[str, ConfigError]) -> list[Cause]:
    """Group errors by cause: errors before warnings, and within each the cause with the most consequences first.
    `lost` is what `left_out` returns."""
    findings = list(found)
    missing = {about for finding in findings if (about := missed(finding.error))} | set(lost)
    groups: dict[Root, _Group] = {}
    for finding in findings:
        root, direct = _root(finding, lost, missing)
        groups.setdefault(root, _Group()).add(finding, direct=direct)
    grouped = [group.cause() for group in groups.values()]
    return sorted(grouped, key=lambda cause: (cause.error.severity != "error", -cause.weight))


def missed(error: ConfigError, known: Collection[str] = ()) -> str:
    """Return what the error reports as missing, as `kind name`, or an empty string if it reports something else.

    For an error about a dependency that does not run, return that job if it is in `known`, the names known to be
    missing.
    """
    for pattern in _MISSING:
        if found := pattern.search(error.text):
            return f"{found[1]} {found[2]}"
    needed = _NEEDED.search(error.text)
    return about if needed and (about := f"job {needed[2]}") in known else ""


class _Group:
    def __init__(self) -> None:
        self._direct: dict[tuple[str, ...], ConfigError] = {}
        self._follow: dict[tuple[str, ...], ConfigError] = {}
        self._graphs: dict[CheckedGraph, None] = {}

    def add(self, finding: GraphFinding, *, direct: bool) -> None:
        error = finding.error
        where = (error.project, error.branch, error.path, str(error.line))
        (self._direct if direct else self._follow).setdefault(where, error)
        if error.severity == "error":
            self._graphs.update(dict.fromkeys(finding.graphs))

    def cause(self) -> Cause:
        direct = list(self._direct.values()) or list(self._follow.values())
        first = next((error for error in direct if error.severity == "error"), direct[0])
        follow = [e for where, e in self._follow.items() if where not in self._direct and e is not first]
        alike = [e for e in direct if e is not first and _same(e) == _same(first)]
        also = [e for e in direct if e is not first and _same(e) != _same(first)] if self._direct else []
        return Cause(first, tuple(alike), tuple(also), tuple(follow), tuple(self._graphs))


def _same(error: ConfigError) -> tuple[str, ...]:
    """Return what identifies an error regardless of its branch, so that the same error of one file is equal on all
    branches."""
    return (error.project, error.path, str(error.line), error.name, error.text, error.snippet)


def _root(finding: GraphFinding, lost: Mapping[str, ConfigError], missing: Collection[str]) -> tuple[Root, bool]:
    """Return what identifies the first cause of an error, and whether the error itself is that cause."""
    error, direct = finding.error, True
    for _ in range(DEPTH_MAX):
        about = missed(error, missing)
        cause = lost.get(about)
        # An error that reports what it leaves out itself would be its own cause.
        if cause is None or cause == error:
            break
        error, direct = cause, False
    if about:
        return ("missing", about, error.project if about.partition(" ")[0] in _OWN else ""), direct
    text = error.text
    for graph in finding.graphs if direct else ():
        text = text.replace(graph.project, "")  # equal for all projects with this error
    return (error.project, error.path, str(error.line), error.name, text), direct


def left_out(layout: Layout) -> dict[str, ConfigError]:
    """Map `kind name` of every definition that an error keeps out of the layout to that error."""
    found: dict[str, ConfigError] = {}
    for stanza, errors in layout.findings.refused.items():
        if not layout.admitted((stanza.kind, stanza.name)):
            found.setdefault(f"{stanza.kind} {stanza.name}", errors[0])
    for place, errors in layout.findings.files.items():
        if layout.index is not None and (parsed := layout.index.parsed.get(place)) is not None:
            for name, error in _void(place, parsed, errors):
                if not layout.admitted(_key(name)):
                    found.setdefault(name, error)
    return found


def _key(name: str) -> tuple[str, str]:
    kind, _, rest = name.partition(" ")
    return kind, rest


_KINDS = ("job", "nodeset", "secret", "project-template", "pipeline", "queue", "semaphore", "image", "label", "flavor")


def _void(place: Place, parsed: ParsedBranch, errors: Sequence[ConfigError]) -> Iterator[tuple[str, ConfigError]]:
    """Yield each definition (`kind name`) that appears in the text of a file with errors but not among its stanzas,
    with the error that prevents it."""
    read = {(s.source.path, s.kind, s.name) for s in parsed.stanzas}
    wrong: dict[str, list[ConfigError]] = {}
    for error in errors:
        if error.severity == "error" and error.path in parsed.files:
            wrong.setdefault(error.path, []).append(error)
    for path, of in wrong.items():
        for kind, name, first, end in stanzas_in(parsed.files[path]):
            if kind in _KINDS and (path, kind, name) not in read:
                yield f"{kind} {name}", next((e for e in of if first <= e.line <= end), of[0])


def stanzas_in(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield (kind, name, first line, last line) of everything that looks like a stanza, even in text that is not
    YAML."""
    lines = text.splitlines()
    heads = [(n, found[1]) for n, line in enumerate(lines) if (found := _STANZA.match(line)) and found[1] in _KINDS]
    ends = [*(first for first, _ in heads[1:]), len(lines)]
    for (first, kind), end in zip(heads, ends, strict=False):
        if name := _NAME.search("\n".join(lines[first:end])):
            yield kind, _named(name[1].strip()), first + 1, end


def _named(text: str) -> str:
    """Return a name as errors show it, with the escapes of a quoted name resolved."""
    if text.startswith('"'):
        with suppress(Wrong):
            return repr(str(load(text)))[1:-1]
    return text.strip("\"'")
