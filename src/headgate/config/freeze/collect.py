"""Collect the variants of a job and of its ancestors that apply, in the order of their application."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.base.errors import ConfigurationError
from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.checks import entries
from headgate.config.files.document import Table
from headgate.config.freeze.mix import VariantRefused
from headgate.config.freeze.sections import FreezeTarget, SectionEntry, job_applies
from headgate.config.parse import Stanza

ANCESTORS_MAX = 200
"""Maximum number of ancestors of a job."""
VARIANTS_MAX = 2_000
"""Maximum number of variants that apply to one job, including those of its ancestors."""
ALL = ""
"""Key of the checkout for projects without a checkout of their own."""


class NoParent(ConfigurationError):
    """Report that a parent is not defined or that none of its variants applies, so the job is in no graph."""


def collect(layout: LayoutDefinitions, name: str, attached: list[SectionEntry], target: FreezeTarget) -> list[Stanza]:
    """Return the applicable variants of a job and its ancestors, those of the base job first. Return none if no variant
    of the job, or of one of its parents, applies. Raise VariantRefused if there are more than VARIANTS_MAX."""
    overrides: dict[str, str] = {}
    for entry in attached:
        overrides |= _checkouts(layout, entry.attributes)
    collector = _Collector(layout, target)
    try:
        collector.visit(name, overrides)
    except NoParent:
        return []
    return collector.found


class _Collector:
    def __init__(self, layout: LayoutDefinitions, target: FreezeTarget) -> None:
        self._layout, self._target = layout, target
        self._visited: set[str] = set()
        self.found: list[Stanza] = []

    def visit(self, name: str, overrides: Mapping[str, str]) -> bool:
        """Collect the applicable variants of `name`, each after those of its parents, and return whether there are any.
        Raise NoParent or VariantRefused."""
        # Mark the job before its parents, so that circular inheritance ends where it began. As in Zuul, it is no error
        # here.
        self._visited.add(name)
        if len(self._visited) > ANCESTORS_MAX:
            raise NoParent
        matched = False
        for variant in self._layout.variants(name):
            if not job_applies(self._layout, variant, self._seen(variant, overrides)):
                continue
            matched = True
            parent = self._parent(variant)
            # Several variants may have the same parent; apply it once, before the first of them.
            if parent is not None and parent not in self._visited:
                # What a job checks out also selects the variants of its parents.
                inner = {**overrides, **_checkouts(self._layout, variant.body)}
                # As in Zuul, a job whose parent does not apply is left out without an error.
                if not self.visit(parent, inner):
                    raise NoParent
            if not any(_equal(variant, known) for known in self.found):
                self.found.append(variant)
            if len(self.found) > VARIANTS_MAX:
                raise VariantRefused(f"more than {VARIANTS_MAX} variants apply to job {name}", variant)
        return matched

    def _parent(self, variant: Stanza) -> str | None:
        if "parent" in variant.body:
            parent = variant.body["parent"]
            return parent if isinstance(parent, str) else None
        # After the first variant, one that names no parent only adds to it, and does not inherit.
        return None if self.found else self._layout.tenant.default_parent

    def _seen(self, variant: Stanza, overrides: Mapping[str, str]) -> FreezeTarget:
        """Return the target for a variant: the branch at which its project is checked out, if the project has that
        branch; otherwise the original target."""
        project = variant.source.project
        branch = overrides.get(project) or overrides.get(ALL)
        if branch and branch in self._layout.branches.get(project, ()):
            return FreezeTarget(branch)
        return self._target


def _equal(one: Stanza, other: Stanza) -> bool:
    """Return whether both are the same stanza, or have the same content on the same branch of the same project."""
    if one is other:
        return True
    same_place = (one.source.project, one.source.branch) == (other.source.project, other.source.branch)
    return same_place and one.body == other.body


def _checkouts(layout: LayoutDefinitions, body: Table) -> dict[str, str]:
    """Return the branches that these attributes check out, by project (or ALL)."""
    found: dict[str, str] = {}
    if override := body.get("override-checkout") or body.get("override-branch"):
        found[ALL] = override
    for entry, _ in entries(body.get("required-projects"), 0):
        if isinstance(entry, Table):
            override = entry.get("override-checkout") or entry.get("override-branch")
            project = layout.tenant.find(entry["name"])
            if override and project is not None:
                found[project.project] = override
    return found
