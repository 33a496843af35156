"""Build the layouts that chains of changes propose.

Configuration of untrusted projects takes effect; that of config-projects is only checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.config.definitions import Branches
from headgate.config.files.source import NO_EFFECT
from headgate.config.freeze.freeze import reuses
from headgate.config.layout import Layout, build_layout, exchanged
from headgate.config.model import ConfigError, FrozenGraph
from headgate.config.operator.model import Tenant, TenantProject, included
from headgate.config.parse import TOO_LARGE, ParseCache, ParsedBranch

Texts = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Project -> branch -> path -> text."""
NOT_IN_FORCE = "Not In Force"
"""Name of errors about branches whose configuration is held back."""
LAYOUTS_MAX = 50
"""Number of proposed layouts that are cached, by content."""
FOLLOWED_MAX = 100
"""Maximum number of branches to replace in an existing layout; if more have changed, rebuild the layout."""
STATIC = ("semaphore", "section", "provider")
"""Kinds of stanzas for which a proposal is only checked; they take effect once it has landed."""


class LayoutRequest(msgspec.Struct, frozen=True):
    """Hold the configuration that a chain of changes proposes, and the place whose job graph is frozen with it."""

    buildset: str
    """Id of the buildset that waits for this."""
    pipeline: str
    project: str
    branch: str
    ref: str = ""
    files: tuple[str, ...] | None = None
    """Files that the change modifies; None when unknown."""
    texts: Texts = {}
    """Configuration of the entire chain; empty if it proposes none."""
    ahead: Texts = {}
    """Configuration of the chain without the change itself."""
    containing: tuple[str, ...] = ()
    """Branches that contain the commit of a tag."""
    parameters: dict[str, Any] = {}
    """Parameters from the person who enqueued the item manually."""


class Judgement(msgspec.Struct, frozen=True):
    """Hold the result of judging a proposal."""

    errors: tuple[ConfigError, ...]
    """Errors that the proposal introduces."""
    graph: FrozenGraph


def refusal(request: LayoutRequest, why: str) -> Judgement:
    """Return the judgement of a request that exceeded a limit: no jobs, and an error with the text `why` in the largest
    file of the change's own project and branch."""
    own = request.texts.get(request.project, {}).get(request.branch, {})
    path = max(own, key=lambda path: len(own[path]), default="")
    return Judgement((ConfigError(TOO_LARGE, why, request.project, request.branch, path),), FrozenGraph())


@dataclass(frozen=True, slots=True)
class _Proposal:
    layout: Layout
    """Layout that determines the jobs of the change."""
    everything: tuple[ConfigError, ...]
    """Errors that would exist if the entire proposal landed."""
    usable: tuple[ConfigError, ...]
    """Errors in the part that takes effect before it lands."""


@dataclass(slots=True)
class TenantLayouts:
    """Provide the landed layout of a tenant, and the layouts that result from proposals."""

    tenant: Tenant
    branches: Branches
    cache: ParseCache
    landed: Layout
    _landed_errors: frozenset[ConfigError]
    """Errors of the landed layout."""
    contents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Project -> branch -> digest of its landed files (`config.operator.model.content_of`). This includes files that
    are held back; for these, the layout uses the previous ones."""
    refused: tuple[ConfigError, ...] = ()
    """Errors in the branches that are held back."""
    _known: dict[tuple[str, ...], _Proposal] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tenant: Tenant,
        branches: Branches,
        cache: ParseCache,
        contents: Mapping[str, Mapping[str, str]] | None = None,
        *,
        before: TenantLayouts | None = None,
        refused: Branches | None = None,
    ) -> TenantLayouts:
        """Return the layouts of a tenant. `before`, if given, holds its previous layouts, to derive the new ones from.
        `refused` holds the branches whose files are held back."""
        landed = _following(before, tenant, branches) or build_layout(tenant, branches, cache.budgets)
        landed_errors = frozenset(landed.errors)
        return cls(
            tenant,
            branches,
            cache,
            landed,
            landed_errors,
            contents or {},
            tuple(_refusals(landed, refused or {}, landed_errors)),
        )

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """Return all errors: first those of the configuration that is held back, then those of the configuration in
        force."""
        return (*self.refused, *self.landed.errors)

    def content(self, project: str) -> Mapping[str, str]:
        """Return the digests of a project's landed configuration files, by branch."""
        return self.contents.get(project, {})

    def reuses(self, pipeline: str, project: str, branch: str) -> bool:
        """Return whether any job of such a change may have `reuse` set, according to the landed configuration."""
        return reuses(self.landed, pipeline, project, branch)

    def judged(self, request: LayoutRequest) -> Judgement:
        """Return the errors that the request's proposal introduces, and the job graph of its change."""
        layout, errors, without = self.landed, tuple[ConfigError, ...](), None
        if request.texts:
            layout, errors = self.proposed(request.texts, (request.project, request.branch), request.ahead)
            errors = tuple(error for error in errors if error.name != NO_EFFECT)
            without = self.layout(request.ahead)
        subject = (request.pipeline, request.project, request.branch, request.ref, request.files)
        graph = layout.freeze(*subject, without, containing=request.containing, parameters=request.parameters)
        return Judgement(errors, graph)

    def fresh(self, texts: Texts) -> list[tuple[str, str]]:
        """Return each proposed text that differs from the landed one, with the landed text, which is empty for a new
        file."""
        found: list[tuple[str, str]] = []
        for project, branches in texts.items():
            for branch, files in branches.items():
                landed = self.branches.get(project, {}).get(branch)
                old = landed.files if landed is not None else {}
                found += [(text, old.get(path, "")) for path, text in files.items() if old.get(path) != text]
        return found

    def proposed(
        self, texts: Texts, own: tuple[str, str] | None = None, ahead: Texts | None = None
    ) -> tuple[Layout, tuple[ConfigError, ...]]:
        """Return the layout to use for a chain that proposes `texts`, and the errors that the proposal introduces.

        Files of untrusted projects take effect; those of config-projects are only checked until they land. Errors that
        the tenant already has, or that the chain `ahead` introduces, are not repeated, except those in `own`, the
        project and branch of the change itself (None: every project and branch for which the chain proposes files).
        """
        proposal = self._proposal(texts)
        # Compare by identity first, which is fast: derived layouts share the error objects of unchanged files, and
        # comparing two records means comparing their snippets.
        same = {id(error) for error in self.landed.errors}
        before = [e for e in self._proposal(ahead).everything if id(e) not in same] if ahead else []
        known = self._landed_errors.union(before) if before else self._landed_errors
        changed = {own} if own is not None else {(p, branch) for p, found in texts.items() for branch in found}
        new = [
            e for e in proposal.everything if (e.project, e.branch) in changed or (id(e) not in same and e not in known)
        ]
        # The usable part may depend on the part that has not landed. Report that only if the whole proposal is valid.
        if not any(e.severity == "error" for e in new):
            everything = set(proposal.everything)
            usable = (e for e in proposal.usable if id(e) not in same and e.severity == "error")
            broken = (e for e in usable if e not in known and e not in everything)
            new += [_unmerged(e) for e in broken]
        return proposal.layout, tuple(dict.fromkeys(new))

    def layout(self, texts: Texts) -> Layout:
        """Return the layout to use for a chain that proposes these texts; the landed one if it proposes nothing."""
        return self._proposal(texts).layout if texts else self.landed

    def _proposal(self, texts: Texts) -> _Proposal:
        parsed = {
            project: {b: self.cache.parse(source, b, files) for b, files in found.items() if _counts(source, b)}
            for project, found in texts.items()
            if (source := self.tenant.by_canonical.get(project)) is not None
        }
        parsed = self._changed(parsed)
        if not parsed:
            return _Proposal(self.landed, self.landed.errors, ())
        # Many items of a queue propose the same texts, directly or through changes ahead; they share one layout.
        key = tuple(sorted(p.digest for found in parsed.values() for p in found.values()))
        if key not in self._known:
            if len(self._known) >= LAYOUTS_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = self._propose(parsed)
        return self._known[key]

    def _changed(self, parsed: dict[str, dict[str, ParsedBranch]]) -> dict[str, dict[str, ParsedBranch]]:
        """Return the branches whose content differs from the landed content."""
        changed = {
            project: {b: p for b, p in found.items() if p is not self.branches.get(project, {}).get(b)}
            for project, found in parsed.items()
        }
        return {project: found for project, found in changed.items() if found}

    def _propose(self, parsed: dict[str, dict[str, ParsedBranch]]) -> _Proposal:
        # No layout is derived from a proposal, so it needs no index.
        everything = exchanged(self.landed, parsed, keep=False)
        # Playbooks of config-projects run with the executor's rights and secrets, so unreviewed ones must not run.
        usable = {project: found for project, found in parsed.items() if not self.landed.source(project).trusted}
        if not usable:
            return _Proposal(self.landed, everything.errors, ())
        layout = everything if len(usable) == len(parsed) else exchanged(self.landed, usable, keep=False)
        made = _Proposal(layout, everything.errors, layout.errors)
        # Otherwise, a proposal could raise the limits that constrain it, or define machines that nobody has reviewed.
        for kind in STATIC:
            layout.singles[kind] = self.landed.singles[kind]
        return made


def _refusals(landed: Layout, refused: Branches, known: Collection[ConfigError]) -> Iterator[ConfigError]:
    """Yield a note for each branch that is held back, followed by the errors in these branches."""
    places = [(project, branch) for project, found in refused.items() for branch in found]
    for project, branch in places:
        text = "this branch's configuration is not in force because of the errors listed with this one"
        yield ConfigError(
            NOT_IN_FORCE, f"{text}; the previous one stays in force until they are fixed", project, branch
        )
    if places:
        yield from (error for error in exchanged(landed, refused, keep=False).errors if error not in known)


def _counts(source: TenantProject, branch: str) -> bool:
    # Landed configuration on a dynamic branch is not read, but proposals on one take effect.
    return included(source, branch) or (source.is_dynamic(branch) and not source.trusted)


def _following(before: TenantLayouts | None, tenant: Tenant, branches: Branches) -> Layout | None:
    """Return the landed layout derived from the previous one, or None if that is impossible or saves no work."""
    if before is None or before.tenant is not tenant:
        return None
    old = before.branches
    # The first branch is the default one; if it changes, the order of all definitions may change.
    if any(p in old and next(iter(old[p]), "") != next(iter(found), "") for p, found in branches.items()):
        return None
    come = {
        project: {branch: one for branch, one in found.items() if old.get(project, {}).get(branch) is not one}
        for project, found in branches.items()
    }
    gone = [(p, branch) for p, found in old.items() for branch in found if branch not in branches.get(p, {})]
    if sum(map(len, come.values())) + len(gone) > FOLLOWED_MAX:
        return None
    return exchanged(before.landed, {p: found for p, found in come.items() if found}, gone, keep=True)


def _unmerged(error: ConfigError) -> ConfigError:
    why = "it depends on a change of a config-project that has not landed yet"
    return replace(error, text=f"{error.text}; {why}", hint="")
