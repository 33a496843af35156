"""Load tenants and their configuration from the store, so that every process builds the same layout.

The layout record contains a digest of the content of every branch.  Texts are used only if they match that digest, so a
process never runs with a half-written change.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.dynamic import TenantLayouts
from headgate.config.layout import Layout, exchanged
from headgate.config.model import ConfigError
from headgate.config.operator import model
from headgate.config.operator.file import parse_tenant_file
from headgate.config.parse import ParseCache, ParsedBranch
from headgate.config.quarantine import held
from headgate.map.projects import layout_at
from headgate.map.records import ConfigBranch, HeldConfiguration, LayoutRecord, RepositoryProblem, SystemConf
from headgate.map.tree import Undecodable, unescape
from headgate.recipes import blob
from headgate.recipes.codec import decode, readable
from headgate.services.context import Context

log = logging.getLogger("headgate.configuration")
file_log = logging.getLogger("headgate.tenants")

Tenants = Callable[[], Mapping[str, model.Tenant]]
"""Returns the currently configured tenants, by name."""


class LoadedBranch(NamedTuple):
    """Describe a branch as loaded by this process."""

    stored: str
    """Digest of everything that is stored for the branch."""
    content: str
    """Digest of the part of the branch that this tenant reads."""
    parsed: ParsedBranch
    held: str = ""
    """Digest of the branch's present content if it is not in effect; empty if it is."""
    refused: ParsedBranch | None = None
    """That content, if it is still stored."""


class Configuration:
    """Load the configuration of one tenant in one process."""

    def __init__(self, context: Context, tenant: model.Tenant, cache: ParseCache) -> None:
        self._context, self.tenant, self._cache = context, tenant, cache
        self._record = context.map.layout(tenant.name).record
        self._texts = context.mirror.part(context.map.config.path, self._record.path)
        self._layouts = TenantLayouts.of(tenant, {}, cache)
        self._of: tuple[model.Tenant, Mapping[str, model.Protection], model.Tenant] = tenant, {}, tenant
        """The tenant, its forges' branch protections, and the tenant with these protections applied, which is the basis
        of layouts."""
        self._version = self._tried = -1
        self._taken: dict[str, dict[str, LoadedBranch]] = {}
        self._broken: Exception | None = None
        """Why no layout could be built from the texts; None if one could."""
        self._logged: Exception | None = None
        self.loaded = asyncio.Event()
        """Set once a configuration has been loaded."""

    def follow(self, tenant: model.Tenant) -> None:
        """Rebuild the layout from the stored texts, because the tenant file has changed."""
        self.tenant = tenant
        self._version = self._tried = -1
        self._taken, self._broken = {}, None

    @property
    def layouts(self) -> TenantLayouts:
        """Return the last loaded layouts, even while the record cannot be read or used."""
        try:
            self.current()
        except Undecodable:
            pass  # the decoder has logged it
        except Exception as error:
            if error is not self._logged:
                self._logged = error
                log.exception("tenant %s: no layout can be built from its configuration", self.tenant.name)
        return self._layouts

    def without(self, pipeline: str) -> str:
        """Return a message about why the pipeline no longer exists; empty if it exists, or if that is unknown."""
        landed = self.layouts.landed
        if pipeline in landed.pipelines or _torn(landed):
            return ""
        return f"the pipeline {pipeline} was removed from the configuration of tenant {self.tenant.name}"

    def unfit(
        self, fresh: Mapping[str, Mapping[str, str]], protections: Mapping[str, model.Protection]
    ) -> frozenset[tuple[str, str]]:
        """Return (project, branch) of branches whose stored content, with the digests in `fresh` (project -> branch ->
        digest), must not take effect because other content of these branches is in effect. `protections` determine
        which branches are included.

        The result is empty if no configuration is in effect.
        """
        try:
            if not self.current():
                return frozenset()
        except Exception as error:
            log.error("tenant %s: no earlier configuration could stay in effect: %s", self.tenant.name, error)
            return frozenset()
        parsed: dict[str, dict[str, ParsedBranch]] = {}
        for source in self.tenant.protected(protections).projects:
            texts = recall(self._context, source.project) if fresh.get(source.project) else {}
            for branch in fresh.get(source.project, {}):
                read = of_interest(source, texts.get(branch, {}))
                if model.included(source, branch):
                    parsed.setdefault(source.project, {})[branch] = self._cache.parse(source, branch, read)
        return held(self._layouts.landed, parsed)

    def wrong_with(self, project: str, branch: str) -> tuple[ConfigError, ...]:
        """Return the errors that would result if the stored content of the branch took effect now."""
        source, landed = self.tenant.by_canonical[project], self._layouts.landed
        read = of_interest(source, recall(self._context, project).get(branch, {}))
        layout = exchanged(landed, {project: {branch: self._cache.parse(source, branch, read)}}, keep=False)
        before = set(landed.errors)
        return tuple(error for error in layout.errors if error not in before)

    def current(self) -> bool:
        """Load the configuration from the mirror. Return True if `layouts` matches the record; until then, callers must
        not decide anything. Raise Undecodable, or any other error, until the texts change."""
        mirror = self._context.mirror
        entry = mirror.get(self._record.path)
        if entry is None:
            return False
        if entry.version == self._version:
            return True
        # Nothing has changed since the last attempt, so another one would have the same result.
        if self._texts.moves == self._tried:
            if self._broken is not None:
                raise self._broken
            return False
        record = layout_at(self._record, mirror)
        if record is None:
            raise Undecodable(self._record.path, "it is damaged")
        # Noted before the attempt, so that a failing one is not repeated at each call.
        self._tried, self._broken = self._texts.moves, None
        try:
            if not self._take(record):
                return False  # texts of a later record are being written, and that record follows
        except Exception as error:
            self._broken = error
            raise
        self._version = entry.version
        self.loaded.set()
        return True

    def _take(self, record: LayoutRecord) -> bool:
        found: dict[str, dict[str, LoadedBranch]] = {}
        # Applying protections iterates over all projects, so the result is cached.
        if self._of[:2] != (self.tenant, record.protections):
            self._of = self.tenant, record.protections, self.tenant.protected(record.protections)
        tenant = self._of[2]
        for source in tenant.projects:
            wanted = record.branches.get(source.project, {})
            branches = self._project(source, wanted, record.held.get(source.project, {}))
            # All projects or none, because a layout must not mix two versions.
            if branches is None:
                return False
            found[source.project] = branches
        # Every layout has the errors that last, but the log names each of them once.
        logged = set(self._layouts.errors) if self._taken else set()
        self._taken = found
        parsed = {project: {b: t.parsed for b, t in branches.items()} for project, branches in found.items()}
        contents = {project: {b: t.content for b, t in branches.items()} for project, branches in found.items()}
        refused = {p: {b: t.refused for b, t in had.items() if t.refused is not None} for p, had in found.items()}
        self._layouts = TenantLayouts.of(tenant, parsed, self._cache, contents, before=self._layouts, refused=refused)
        for error in self._layouts.errors:
            if error not in logged:
                log.warning("tenant %s: %s", self.tenant.name, error.render())
        return True

    def _project(
        self, source: model.TenantProject, wanted: Mapping[str, str], apart: Mapping[str, HeldConfiguration]
    ) -> dict[str, LoadedBranch] | None:
        """Return the included branches, or None if the texts do not match `wanted`. For a branch in `apart`, whose
        present content is not in effect, also return that content: it shows the errors, and changes there are based on
        it."""
        had = self._taken.get(source.project, {})
        wanted = {branch: digest for branch, digest in wanted.items() if model.included(source, branch)}
        now = [(branch, digest, apart[branch].digest if branch in apart else "") for branch, digest in wanted.items()]
        # Parsing is expensive, and a push changes only one project, so the others are reused.
        if [(branch, taken.stored, taken.held) for branch, taken in had.items()] == now:
            return had
        texts = recall(self._context, source.project)
        out: dict[str, LoadedBranch] = {}
        for branch, digest, new in now:
            own = texts.get(branch, {})
            # While newer texts are not in effect, the texts that the layout uses are stored separately.
            files = own if model.content_of(own) == digest else former(self._context, source.project, digest)
            if files is None:
                return None
            read = of_interest(source, files)
            taken = LoadedBranch(digest, model.content_of(read), self._cache.parse(source, branch, read), new)
            if new and model.content_of(own) == new:
                own = of_interest(source, own)
                taken = taken._replace(content=model.content_of(own), refused=self._cache.parse(source, branch, own))
            out[branch] = taken
        return out


def _torn(layout: Layout) -> bool:
    """Return whether a config-project has errors, so that pipelines may be missing although nobody removed them."""
    found = layout.findings
    of = (errors for (project, _), errors in found.files.items() if layout.source(project).trusted)
    refused = (e for s, e in found.refused.items() if s.kind == "pipeline" and s.name not in layout.pipelines)
    return any(error.severity == "error" for errors in (*of, *refused) for error in errors)


def of_interest(source: model.TenantProject, files: Mapping[str, str]) -> dict[str, str]:
    """Return the files that this tenant reads; other tenants may read more paths of the same project."""
    paths = source.config_paths
    return {f: text for f, text in files.items() if any(f == p or (p.endswith("/") and f.startswith(p)) for p in paths)}


def protection(context: Context, source: model.TenantProject) -> model.Protection | None:
    """Return the branch protections that the forge reports for the project, from the mirror; None if it reports none,
    or if the tenant does not select branches by protection."""
    place = context.map.cache.connection(source.connection).protection(source.project).record
    entry = context.mirror.get(place.path) if source.is_selective else None
    if entry is None:
        return None
    try:
        return decode(blob.assemble(entry, context.mirror.under(place.path)), model.Protection)
    except ValueError:
        return readable(entry, model.Protection)


def stored_branches(context: Context, project: str) -> dict[str, ConfigBranch]:
    """Map each branch to its stored record, without unreadable ones, with the default branch first."""
    place = context.map.config.cache(project)
    found: dict[str, ConfigBranch] = {}
    for entry in context.mirror.under(place.path):
        name = place.relative(entry.path)
        if "/" not in name and (record := readable(entry, ConfigBranch)) is not None:
            found[unescape(name)] = record
    return dict(sorted(found.items(), key=lambda one: (not one[1].default, one[0])))


def recall(context: Context, project: str) -> dict[str, dict[str, str]]:
    """Return the stored texts of the project: branch -> path -> text. Omit incomplete texts."""
    place = context.map.config.cache(project)
    entries = context.mirror.under(place.path)
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        parts = place.relative(entry.path).split("/")
        if len(parts) == 2:
            # A file that is being written counts as missing; its digest then does not match.
            with suppress(ValueError):
                found.setdefault(unescape(parts[0]), {})[unescape(parts[1])] = blob.assemble(entry, entries).decode()
    return found


def former(context: Context, project: str, digest: str) -> dict[str, str] | None:
    """Return the texts with this digest that a branch of the project used to have: path -> text; None if they are
    gone."""
    place = context.map.config.former(project).content(digest)
    entries, found = context.mirror.under(place.path), dict[str, str]()
    for entry in entries:
        name = place.relative(entry.path)
        if "/" not in name:
            with suppress(ValueError):
                found[unescape(name)] = blob.assemble(entry, entries).decode()
    return found if model.content_of(found) == digest else None


def readers(tenants: Iterable[model.Tenant]) -> dict[str, list[model.TenantProject]]:
    """Map each canonical project to its entries in all tenants. The cache is shared, so it must contain everything that
    any of them reads."""
    found: dict[str, list[model.TenantProject]] = {}
    for tenant in tenants:
        for source in tenant.projects:
            found.setdefault(source.project, []).append(source)
    return found


def conf_of(text: str, path: str) -> SystemConf:
    """Return the record of a tenant file."""
    return SystemConf(text, path, hashlib.sha256(text.encode()).hexdigest())


class Tenancy(Mapping[str, Configuration]):
    """Map the name of each tenant to its configuration in effect, as the mirror shows it.

    It is empty until a scheduler has written the tenant file, except in the process that has read the file. A tenant
    keeps its `Configuration` object while it exists; only the contents of the object change.
    """

    def __init__(
        self,
        context: Context,
        connections: Mapping[str, model.Connection],
        budgets: Budgets = DEFAULTS,
        *,
        cache: ParseCache | None = None,
        read: tuple[SystemConf, model.TenantFile] | None = None,
    ) -> None:
        """Create the tenancy. `read` is the file as this process read it, which is used until `follow` is called."""
        self._context, self._connections = context, connections
        self._cache = cache or ParseCache(budgets=budgets)
        self._version, self._digest = -1, ""
        self._known: dict[str, Configuration] = {}
        self._file = model.TenantFile({})
        self._refused: RepositoryProblem | None = None
        self.follows = read is None
        """Whether tenants are read from the store."""
        if read is not None:
            self._take(read[1])
            self._digest = read[0].digest

    def follow(self) -> None:
        """Follow the store from now on."""
        self.follows = True

    @property
    def file(self) -> model.TenantFile:
        """Return the contents of the file."""
        self._now()
        return self._file

    @property
    def refused(self) -> RepositoryProblem | None:
        """Return why and when the last file was rejected, or None if it was accepted."""
        self._now()
        return self._refused

    def tenants(self) -> dict[str, model.Tenant]:
        """Return the current tenants, by name."""
        return {name: found.tenant for name, found in self._now().items()}

    def parsed(self, conf: SystemConf) -> model.TenantFile:
        """Return the parsed tenant file.  Raise ConfigErrors if any tenant cannot be loaded."""
        found = parse_tenant_file(conf.text, conf.path, self._connections)
        # A reloaded file takes effect completely or not at all; only at startup may single tenants be missing.
        if found.refused:
            raise model.ConfigErrors(tuple(error for errors in found.refused.values() for error in errors))
        return found

    def _now(self) -> Mapping[str, Configuration]:
        path = self._context.map.system.conf.path
        entry = self._context.mirror.get(path)
        if not self.follows or entry is None or entry.version == self._version:
            return self._known
        # Noted even if the file cannot be read, so that the error is logged only once.
        self._version = entry.version
        try:
            conf = msgspec.json.decode(blob.assemble(entry, self._context.mirror.under(path)), type=SystemConf)
        except ValueError as error:
            file_log.error("%s cannot be read; waiting until a scheduler writes it again: %s", path, error)
            return self._known
        self._refused = RepositoryProblem(conf.refused_ms, conf.refused) if conf.refused else None
        # The record also changes when a file is rejected, but the file in effect stays the same.
        if conf.digest == self._digest:
            return self._known
        try:
            found = parse_tenant_file(conf.text, conf.path, self._connections)
        except model.ConfigErrors as errors:
            # This process may lack a connection that the schedulers have.
            file_log.error("the schedulers' tenant file is invalid here; keeping the previous tenants: %s", errors)
            return self._known
        self._take(found)
        self._digest = conf.digest
        return self._known

    def _take(self, found: model.TenantFile) -> None:
        """Apply the file; existing tenants continue with its new content."""
        before, self._known, self._file = self._known, {}, found
        for name, tenant in found.tenants.items():
            known = before.get(name)
            if known is None:
                known = Configuration(self._context, tenant, self._cache)
            elif known.tenant != tenant:
                # The old layout stays until the new one is loaded, so that pages and running builds are not affected.
                known.follow(tenant)
            self._known[name] = known

    def __getitem__(self, name: str) -> Configuration:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())
