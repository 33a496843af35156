"""The tenants as the store has their file: every process follows it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping

import msgspec

from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.operator.model import ConfigErrors, TenantFile
from headgate.config.parse import ParseCache
from headgate.config.tenants import Connection, Tenant, parse_tenant_file
from headgate.map.records import RepositoryProblem, SystemConf
from headgate.recipes import blob
from headgate.services.configuration import Configuration
from headgate.services.context import Context

Tenants = Callable[[], Mapping[str, Tenant]]
"""Returns the tenants as they are configured now, by name."""
log = logging.getLogger("headgate.tenants")


def conf_of(text: str, path: str) -> SystemConf:
    """Return the record of a tenant file."""
    return SystemConf(text, path, hashlib.sha256(text.encode()).hexdigest())


class Tenancy(Mapping[str, Configuration]):
    """Name -> configuration in effect, always as the mirror shows them.  Nothing until a scheduler wrote the file, but
    for whoever has read it.  A tenant keeps its object while it is one: what it comes to changes in it."""

    def __init__(
        self,
        context: Context,
        connections: Mapping[str, Connection],
        budgets: Budgets = DEFAULTS,
        *,
        cache: ParseCache | None = None,
        read: tuple[SystemConf, TenantFile] | None = None,
    ) -> None:
        """Make the tenancy. `read` is the file as this process read it, which counts until `follow`."""
        self._context, self._connections = context, connections
        self._cache = cache or ParseCache(budgets=budgets)
        self._version, self._digest = -1, ""
        self._known: dict[str, Configuration] = {}
        self._file = TenantFile({})
        self._refused: RepositoryProblem | None = None
        self.follows = read is None
        """Whether tenants come from the store."""
        if read is not None:
            self._take(read[1])
            self._digest = read[0].digest

    def follow(self) -> None:
        """Follow the store from now on."""
        self.follows = True

    @property
    def file(self) -> TenantFile:
        """Return what the file contains."""
        self._now()
        return self._file

    @property
    def refused(self) -> RepositoryProblem | None:
        """Return why the last file that was read was not accepted, and since when."""
        self._now()
        return self._refused

    def tenants(self) -> dict[str, Tenant]:
        """Return them as they are now."""
        return {name: found.tenant for name, found in self._now().items()}

    def parsed(self, conf: SystemConf) -> TenantFile:
        """Return what a file says.  Raises ConfigErrors, also for one tenant that cannot be loaded."""
        found = parse_tenant_file(conf.text, conf.path, self._connections)
        # A file that is read anew takes effect as a whole or not at all; only at the start may single tenants be
        # missing.
        if found.refused:
            raise ConfigErrors(tuple(error for errors in found.refused.values() for error in errors))
        return found

    def _now(self) -> Mapping[str, Configuration]:
        path = self._context.map.system.conf.path
        entry = self._context.mirror.get(path)
        if not self.follows or entry is None or entry.version == self._version:
            return self._known
        # It is noted even if the file cannot be read, so the error is logged once.
        self._version = entry.version
        try:
            conf = msgspec.json.decode(blob.assemble(entry, self._context.mirror.under(path)), type=SystemConf)
        except ValueError as error:
            log.error("%s cannot be read; it is waited for until a scheduler writes it anew: %s", path, error)
            return self._known
        self._refused = RepositoryProblem(conf.refused_ms, conf.refused) if conf.refused else None
        # The record also changes when a file is refused, and the file itself is the same then.
        if conf.digest == self._digest:
            return self._known
        try:
            found = parse_tenant_file(conf.text, conf.path, self._connections)
        except ConfigErrors as errors:
            # This process may lack a connection that the schedulers have.
            log.error("the tenant file of the schedulers cannot be taken up here; going on as before: %s", errors)
            return self._known
        self._take(found)
        self._digest = conf.digest
        return self._known

    def _take(self, found: TenantFile) -> None:
        """Take over the file; existing tenants continue with its new content."""
        before, self._known, self._file = self._known, {}, found
        for name, tenant in found.tenants.items():
            known = before.get(name)
            if known is None:
                known = Configuration(self._context, tenant, self._cache)
            elif known.tenant != tenant:
                # Its layout is kept until the new one is loaded, so pages and running builds are not affected.
                known.follow(tenant)
            self._known[name] = known

    def __getitem__(self, name: str) -> Configuration:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())
