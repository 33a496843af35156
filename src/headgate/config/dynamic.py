"""The configuration a chain of changes proposes: used where it may be, checked where it may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.config.layout import Branches, Layout, build_layout
from headgate.config.model import ConfigError
from headgate.config.operator.model import Tenant
from headgate.config.parse import ParseCache, ParsedBranch

Texts = Mapping[str, Mapping[str, Mapping[str, str]]]
"""project -> branch -> path -> text"""
LAYOUTS_MAX = 50
"""Proposed layouts kept, by content."""
STATIC = ("semaphore", "section", "provider")
"""Kinds of which a proposal is checked, and takes effect when it has landed."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    layout: Layout
    """To be used."""
    everything: tuple[ConfigError, ...]
    """What would be wrong if all of it landed."""
    usable: tuple[ConfigError, ...]
    """What is wrong with what may be used before it lands."""


@dataclass(slots=True)
class Layouts:
    """The landed layout of a tenant, and those that proposals would make."""

    tenant: Tenant
    branches: Branches
    cache: ParseCache
    landed: Layout
    _known: dict[tuple[str, ...], _Proposal] = field(default_factory=dict)

    @classmethod
    def of(cls, tenant: Tenant, branches: Branches, cache: ParseCache) -> Layouts:
        return cls(tenant, branches, cache, build_layout(tenant, branches))

    def proposed(
        self, texts: Texts, own: tuple[str, str] | None = None, ahead: Texts | None = None
    ) -> tuple[Layout, tuple[ConfigError, ...]]:
        """The layout to use for a chain that proposes `texts`, and the errors the proposal brings.

        Files of untrusted projects take effect; those of config-projects are checked only, until they land.  What the
        tenant has already, or the chain `ahead` brings, is not told again; but for what is wrong in `own`, the project
        and branch of the change itself (None: every project and branch that the chain proposes something for).
        """
        proposal = self._proposal(texts)
        known = set(self.landed.errors)
        if ahead:
            known.update(self._proposal(ahead).everything)
        changed = {own} if own is not None else {(p, branch) for p, found in texts.items() for branch in found}
        new = [e for e in proposal.everything if e not in known or (e.project, e.branch) in changed]
        if not any(e.severity == "error" for e in new):
            everything = set(proposal.everything)
            broken = (e for e in proposal.usable if e.severity == "error" and e not in known and e not in everything)
            new += [_unmerged(e) for e in broken]
        return proposal.layout, tuple(dict.fromkeys(new))

    def layout(self, texts: Texts) -> Layout:
        """The one to use for a chain that proposes these; the landed one when it proposes nothing."""
        return self._proposal(texts).layout if texts else self.landed

    def _proposal(self, texts: Texts) -> _Proposal:
        sources = {p.project: p for p in self.tenant.projects}
        parsed = {
            project: {branch: self.cache.parse(sources[project], branch, files) for branch, files in found.items()}
            for project, found in texts.items()
            if project in sources
        }
        key = tuple(sorted(p.digest for found in parsed.values() for p in found.values()))
        if key not in self._known:
            if len(self._known) >= LAYOUTS_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = self._propose(parsed)
        return self._known[key]

    def _propose(self, parsed: dict[str, dict[str, ParsedBranch]]) -> _Proposal:
        everything = build_layout(self.tenant, self._with(parsed))
        untrusted = {p.project for p in self.tenant.projects if not p.trusted}
        usable = {project: found for project, found in parsed.items() if project in untrusted}
        if not usable:
            return _Proposal(self.landed, everything.errors, ())
        layout = everything if len(usable) == len(parsed) else build_layout(self.tenant, self._with(usable))
        made = _Proposal(layout, everything.errors, layout.errors)
        for kind in STATIC:
            layout.singles[kind] = self.landed.singles[kind]
        return made

    def _with(self, parsed: Mapping[str, Mapping[str, ParsedBranch]]) -> Branches:
        return {**self.branches, **{p: {**self.branches.get(p, {}), **found} for p, found in parsed.items()}}


def _unmerged(error: ConfigError) -> ConfigError:
    return replace(error, text=f"{error.text}; it depends on a change of a config-project that has not landed yet")
