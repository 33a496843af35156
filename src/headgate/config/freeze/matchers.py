"""Decide whether a stanza applies to a branch, a tag or another ref."""

from __future__ import annotations

from typing import Any, NamedTuple

from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.check import as_list, deep_plain, plain
from headgate.config.parse import Stanza
from headgate.config.patterns import any_matches


class FreezeTarget(NamedTuple):
    """Hold the branch, tag or other ref for which something is frozen."""

    branch: str = ""
    """Branch of a change or of a branch's ref; empty for tags and other refs."""
    ref: str = ""
    containing: tuple[str, ...] = ()
    """Branches that contain the commit of a tag."""
    anywhere: bool = False
    """Whether it is a tag whose containing branches are not known yet, so that every branch matches."""

    def matches(self, rules: Any) -> bool:
        """Return whether one of the users' patterns matches at the start. Without patterns, everything matches."""
        known = as_list(deep_plain(plain(rules)))
        if not known or self.anywhere:
            return True
        return any(any_matches(known, name) for name in self._names())

    def is_branch(self, branch: str) -> bool:
        """Return whether the target is exactly this branch."""
        return self.anywhere or branch in self._names()

    def _names(self) -> tuple[str, ...]:
        if self.branch:
            return (self.branch,)
        # A tag is on no branch, so it counts as on all that contain its commit.
        return (self.ref, *self.containing) if self.ref.startswith("refs/tags/") else (self.ref,)


def job_applies(layout: LayoutDefinitions, stanza: Stanza, target: FreezeTarget) -> bool:
    if "branches" in stanza.body:
        return target.matches(stanza.body["branches"])
    source = layout.source(stanza.source.project)
    wanted = stanza.pragma.get("implied-branch-matchers", source.implied_branch_matchers)
    if wanted is None:
        wanted = not stanza.source.trusted and (bool(source.always_dynamic_branches) or _several(layout, stanza))
    return not wanted or _implied(stanza, target)


def template_applies(layout: LayoutDefinitions, stanza: Stanza, target: FreezeTarget) -> bool:
    wanted = stanza.pragma.get("implied-branch-matchers")
    if wanted is None:
        wanted = not stanza.source.trusted and _several(layout, stanza)
    return not wanted or _implied(stanza, target)


def project_applies(layout: LayoutDefinitions, stanza: Stanza, project: str, target: FreezeTarget) -> bool:
    """Return whether the stanza applies. `project` is the canonical name of the project that it configures."""
    if "branches" in stanza.body:
        return target.matches(stanza.body["branches"])
    if stanza.source.project == project:
        return stanza.source.trusted or target.is_branch(stanza.source.branch)
    return template_applies(layout, stanza, target)


def _several(layout: LayoutDefinitions, stanza: Stanza) -> bool:
    return len(layout.branches.get(stanza.source.project, ())) > 1


def _implied(stanza: Stanza, target: FreezeTarget) -> bool:
    if "implied-branches" in stanza.pragma:
        return target.matches(stanza.pragma["implied-branches"])
    return target.is_branch(stanza.source.branch)
