"""Determine which projects a change of the configuration affects: those that may run different jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headgate.config.definitions import PATTERNS, Key
from headgate.config.layout import Layout
from headgate.config.parse import Stanza
from headgate.config.patterns import any_whole


def reached(old: Layout, new: Layout) -> frozenset[str]:
    """Return the canonical names of the projects whose job graphs may differ. Both layouts must have an index.

    Every changed definition is followed through the references to it, up to the projects. All other projects freeze to
    the same graphs, though inherited definitions may have moved within their files.
    """
    references = _References(old, new)
    for key in _changed(old, new):
        references.follow(key)
    return frozenset(references.projects)


def referring(layout: Layout, *keys: Key) -> frozenset[Key]:
    """Return the keys themselves and all keys that refer to any of them, directly or indirectly."""
    references = _References(layout, layout)
    for key in keys:
        references.follow(key)
    return frozenset(references.seen)


class _References:
    def __init__(self, old: Layout, new: Layout) -> None:
        self._layouts = (old,) if old is new else (old, new)
        self.seen: set[Key] = set()
        self.projects: set[str] = set()

    def follow(self, key: Key) -> None:
        waiting = [key]
        while waiting:
            key = waiting.pop()
            if key in self.seen:
                continue
            self.seen.add(key)
            if key[0] == "project":
                self.projects.update(self._configured(key))
            for layout in self._layouts:
                waiting += (one for stanza in _readers(layout, key) for one in _keys(layout, stanza))

    def _configured(self, key: Key) -> Iterator[str]:
        if key != PATTERNS:
            yield key[1]
            return
        names = [stanza.name for layout in self._layouts for stanza in layout.patterns]
        for project in self._layouts[0].tenant.projects:
            if any_whole(names, project.name) or any_whole(names, project.project):
                yield project.project


def _readers(layout: Layout, key: Key) -> Iterable[Stanza]:
    assert layout.index is not None, "a layout that is compared keeps its index"
    found = layout.index.readers.get(key, frozenset())
    # A job that names no parent has no recorded reference to the default one.
    if key == ("job", layout.tenant.default_parent):
        orphans = (s for variants in layout.jobs.values() for s in variants if "parent" not in s.body)
        return {*found, *orphans}
    return found


def _keys(layout: Layout, stanza: Stanza) -> Iterator[Key]:
    """Yield the key of what the stanza defines."""
    if stanza.kind != "project":
        yield (stanza.kind, stanza.name)
    elif stanza.name.startswith("^"):
        yield PATTERNS
    elif (target := layout.tenant.find(stanza.name or stanza.source.project)) is not None:
        yield ("project", target.project)


def _changed(old: Layout, new: Layout) -> Iterator[Key]:
    """Yield the keys whose definition differs, or that a project defines whose set of branches differs."""
    assert old.index is not None and new.index is not None, "layouts that are compared keep their index"
    places = {*old.index.parsed, *new.index.parsed}
    touched = [place for place in places if old.index.parsed.get(place) is not new.index.parsed.get(place)]
    keys = {
        key
        for place in touched
        for layout in (old, new)
        if layout.index is not None and (parsed := layout.index.parsed.get(place)) is not None
        for stanza in parsed.stanzas
        for key in _keys(layout, stanza)
    }
    if any(kind == "label" for kind, _ in keys):
        keys |= {key for layout in (old, new) if layout.index is not None for key in layout.index.claims}
    # Definitions of a project with several branches apply to their own branch only, so the number of branches matters.
    rebranched = {p for p, _ in touched if old.branches.get(p, ()) != new.branches.get(p, ())}
    for key in keys:
        if _contents(old.admitted(key)) != _contents(new.admitted(key)):
            yield key
    for layout in (old, new) if rebranched else ():
        for key, claims in layout.index.claims.items() if layout.index is not None else ():
            if any(stanza.source.project in rebranched for stanza in claims):
                yield key


def _contents(stanzas: Sequence[Stanza]) -> list[object]:
    """Return the content of stanzas, regardless of their positions in their files."""
    return [(s.source.project, s.source.branch, s.source.trusted, s.body, dict(s.pragma)) for s in stanzas]
