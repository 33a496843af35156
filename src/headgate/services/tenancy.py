"""The tenants as the store has their file: for processes that do not read it themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import msgspec

from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.operator.model import ConfigErrors, TenantFile
from headgate.config.parse import ParseCache
from headgate.config.tenants import Connection, parse_tenant_file
from headgate.map.records import SystemConf
from headgate.recipes import blob
from headgate.services.configuration import Configuration
from headgate.services.context import Context

log = logging.getLogger("headgate.tenants")


class Tenancy(Mapping[str, Configuration]):
    """Name -> configuration in effect, always as the mirror shows them.  Nothing until a scheduler wrote the file."""

    def __init__(self, context: Context, connections: Mapping[str, Connection], budgets: Budgets = DEFAULTS) -> None:
        self._budgets = budgets
        self._context, self._connections = context, connections
        self._version = -1
        self._known: dict[str, Configuration] = {}
        self._file = TenantFile({})

    @property
    def file(self) -> TenantFile:
        self._now()
        return self._file

    def _now(self) -> Mapping[str, Configuration]:
        path = self._context.map.system.conf.path
        entry = self._context.mirror.get(path)
        if entry is None or entry.version == self._version:
            return self._known
        self._version = entry.version
        try:
            conf = msgspec.json.decode(blob.assemble(entry, self._context.mirror.under(path)), type=SystemConf)
        except ValueError as error:
            log.error("%s cannot be read; it is waited for until a scheduler writes it anew: %s", path, error)
            return self._known
        try:
            found = parse_tenant_file(conf.text, conf.path, self._connections)
        except ConfigErrors as errors:
            log.error("the tenant file of the schedulers cannot be taken up here; going on as before: %s", errors)
            return self._known
        cache = ParseCache(budgets=self._budgets)
        self._file = found
        self._known = {name: Configuration(self._context, tenant, cache) for name, tenant in found.tenants.items()}
        return self._known

    def __getitem__(self, name: str) -> Configuration:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())
