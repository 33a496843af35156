"""A tenant's configuration as the store has it: every process makes the same layout of it, and asks nobody.

The layout record names the content of every branch; texts are taken up only when they are exactly that content, so
a process never runs with half of a change that is being written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from headgate.config.branches import content_of, included
from headgate.config.dynamic import Layouts
from headgate.config.layout import Layout
from headgate.config.parse import ParseCache, ParsedBranch
from headgate.config.tenants import Tenant, TenantProject
from headgate.map.records import ConfigBranch, LayoutRecord
from headgate.map.tree import Undecodable, unescape
from headgate.recipes import blob
from headgate.recipes.codec import readable
from headgate.services.context import Context

log = logging.getLogger("headgate.configuration")


class Taken(NamedTuple):
    """A branch as it was taken up."""

    kept: str
    """Digest of all that is kept of it."""
    content: str
    """Digest of what this tenant reads of it."""
    parsed: ParsedBranch


class Configuration:
    """Of one tenant, in one process."""

    def __init__(self, context: Context, tenant: Tenant, cache: ParseCache) -> None:
        self._context, self.tenant, self._cache = context, tenant, cache
        self._record = context.map.layout(tenant.name).record
        self._texts = context.mirror.part(context.map.config.path, self._record.path)
        self._layouts = Layouts.of(tenant, {}, cache)
        self._version = self._tried = -1
        self._taken: dict[str, dict[str, Taken]] = {}
        self._broken: Exception | None = None
        """Why nothing could be made of the texts, as they are."""
        self._told: Exception | None = None
        self.loaded = asyncio.Event()
        """Set once there is a configuration at all."""

    def follow(self, tenant: Tenant) -> None:
        """The tenant file says something else of the tenant now: its layout is made anew, of what is kept."""
        self.tenant = tenant
        self._version = self._tried = -1
        self._taken, self._broken = {}, None

    @property
    def layouts(self) -> Layouts:
        """As last taken up, also while the record cannot be read, or nothing can be made of what it says."""
        try:
            self.current()
        except Undecodable:
            if (entry := self._context.mirror.get(self._record.path)) is not None:
                readable(entry, LayoutRecord)  # the log says so
        except Exception as error:
            if error is not self._told:
                self._told = error
                log.exception("tenant %s: nothing can be made of its configuration", self.tenant.name)
        return self._layouts

    def without(self, pipeline: str) -> str:
        """Return why nobody has the pipeline any more, for people; empty: somebody has, or that cannot be told."""
        landed = self.layouts.landed
        if pipeline in landed.pipelines or _torn(landed):
            return ""
        return f"the pipeline {pipeline} was removed from the configuration of tenant {self.tenant.name}"

    def current(self) -> bool:
        """Takes up what the mirror shows.  True: `layouts` is what the record says; decide nothing before.  Raises
        Undecodable, or whatever stands in the way, until the texts move."""
        mirror = self._context.mirror
        entry = mirror.get(self._record.path)
        if entry is None:
            return False
        if entry.version == self._version:
            return True
        if self._texts.moves == self._tried:
            if self._broken is not None:
                raise self._broken
            return False
        record = self._record.decode(entry.value)
        self._tried, self._broken = self._texts.moves, None
        try:
            if not self._take(record):
                return False  # the texts of a later record are being written: it follows
        except Exception as error:
            self._broken = error
            raise
        self._version = entry.version
        self.loaded.set()
        return True

    def _take(self, record: LayoutRecord) -> bool:
        found: dict[str, dict[str, Taken]] = {}
        for source in self.tenant.projects:
            wanted = record.branches.get(source.project, {})
            branches = self._project(source, wanted)
            if branches is None:
                return False
            found[source.project] = branches
        self._taken = found
        parsed = {project: {b: t.parsed for b, t in branches.items()} for project, branches in found.items()}
        contents = {project: {b: t.content for b, t in branches.items()} for project, branches in found.items()}
        self._layouts = Layouts.of(self.tenant, parsed, self._cache, contents, before=self._layouts)
        for error in self._layouts.landed.errors:
            log.warning("tenant %s: %s", self.tenant.name, error.render())
        return True

    def _project(self, source: TenantProject, wanted: Mapping[str, str]) -> dict[str, Taken] | None:
        """The branches that take part; None when the texts are not the ones that are `wanted`."""
        had = self._taken.get(source.project, {})
        wanted = {branch: digest for branch, digest in wanted.items() if included(source, branch)}
        if [(branch, taken.kept) for branch, taken in had.items()] == list(wanted.items()):
            return had
        texts = recall(self._context, source.project)
        out: dict[str, Taken] = {}
        for branch, digest in wanted.items():
            files = texts.get(branch, {})
            if content_of(files) != digest:
                return None
            read = of_interest(source, files)
            out[branch] = Taken(digest, content_of(read), self._cache.parse(source, branch, read))
        return out


def _torn(layout: Layout) -> bool:
    """Is there something wrong with a config-project, so that pipelines may be missing that nobody removed?"""
    found = layout.findings
    of = (errors for (project, _), errors in found.files.items() if layout.source(project).trusted)
    refused = (e for s, e in found.refused.items() if s.kind == "pipeline" and s.name not in layout.pipelines)
    return any(error.severity == "error" for errors in (*of, *refused) for error in errors)


def of_interest(source: TenantProject, files: Mapping[str, str]) -> dict[str, str]:
    """Those that this tenant reads: others may look at more paths of the same project."""
    paths = source.config_paths
    return {f: text for f, text in files.items() if any(f == p or (p.endswith("/") and f.startswith(p)) for p in paths)}


def kept(context: Context, project: str) -> dict[str, ConfigBranch]:
    """branch -> what is kept of it, as the mirror shows it, where that can be read; the default branch first."""
    place = context.map.config.cache(project)
    found: dict[str, ConfigBranch] = {}
    for entry in context.mirror.under(place.path):
        name = entry.path.removeprefix(place.path + "/")
        if "/" not in name and (record := readable(entry, ConfigBranch)) is not None:
            found[unescape(name)] = record
    return dict(sorted(found.items(), key=lambda one: (not one[1].default, one[0])))


def recall(context: Context, project: str) -> dict[str, dict[str, str]]:
    """The texts kept of the project: branch -> path -> text.  One whose pieces are not all there is left out."""
    place = context.map.config.cache(project)
    entries = context.mirror.under(place.path)
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        parts = entry.path.removeprefix(place.path + "/").split("/")
        if len(parts) == 2:
            with suppress(ValueError):
                found.setdefault(unescape(parts[0]), {})[unescape(parts[1])] = blob.assemble(entry, entries).decode()
    return found


def readers(tenants: Iterable[Tenant]) -> dict[str, list[TenantProject]]:
    """Canonical project -> how each tenant that has it reads it: the cache is shared, so it holds what any wants."""
    found: dict[str, list[TenantProject]] = {}
    for tenant in tenants:
        for source in tenant.projects:
            found.setdefault(source.project, []).append(source)
    return found
