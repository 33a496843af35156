"""The configuration a chain of changes proposes: used where it may be, checked where it may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.config.layout import Branches, Layout, build_layout
from headgate.config.model import ConfigError
from headgate.config.parse import ParseCache, ParsedBranch
from headgate.config.tenants import Tenant

Texts = Mapping[str, Mapping[str, Mapping[str, str]]]
"""project -> branch -> path -> text"""
LAYOUTS_MAX = 200
"""Proposed layouts kept, by content."""


@dataclass(slots=True)
class Layouts:
    """The landed layout of a tenant, and those that proposals would make."""

    tenant: Tenant
    branches: Branches
    cache: ParseCache
    landed: Layout
    _known: dict[tuple[str, ...], tuple[Layout, tuple[ConfigError, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, tenant: Tenant, branches: Branches, cache: ParseCache) -> Layouts:
        return cls(tenant, branches, cache, build_layout(tenant, branches))

    def proposed(self, texts: Texts) -> tuple[Layout, tuple[ConfigError, ...]]:
        """The layout to use for a chain that proposes `texts`, and the errors the proposal brings.

        Files of untrusted projects take effect; those of config-projects are checked only, until they land.
        """
        trusted = {p.project for p in self.tenant.projects if p.trusted}
        parsed = {
            project: {branch: self.cache.parse(source, branch, files) for branch, files in by_branch.items()}
            for project, by_branch in texts.items()
            if (source := self.landed.source(project)) is not None
        }
        key = tuple(sorted(p.digest for found in parsed.values() for p in found.values()))
        if key not in self._known:
            if len(self._known) >= LAYOUTS_MAX:
                self._known.clear()
            self._known[key] = self._propose(parsed, trusted)
        return self._known[key]

    def _propose(
        self, parsed: dict[str, dict[str, ParsedBranch]], trusted: set[str]
    ) -> tuple[Layout, tuple[ConfigError, ...]]:
        everything = build_layout(self.tenant, self._with(parsed))
        untrusted = {project: found for project, found in parsed.items() if project not in trusted}
        usable = everything if len(untrusted) == len(parsed) else build_layout(self.tenant, self._with(untrusted))
        layout = usable if untrusted else self.landed
        known = set(self.landed.errors)
        changed = {(project, branch) for project, found in parsed.items() for branch in found}
        new = [e for e in everything.errors if e not in known or (e.project, e.branch) in changed]
        if not any(e.severity == "error" for e in new) and layout is usable:
            missing = [e for e in usable.errors if e not in known and e not in everything.errors]
            new += [_unmerged(e) for e in missing]
        return layout, tuple(new)

    def _with(self, parsed: Mapping[str, Mapping[str, ParsedBranch]]) -> Branches:
        merged = {project: dict(found) for project, found in self.branches.items()}
        for project, found in parsed.items():
            merged.setdefault(project, {}).update(found)
        return merged


def _unmerged(error: ConfigError) -> ConfigError:
    return replace(error, text=f"{error.text}; it depends on a change of a config-project that has not landed yet")
