"""The scheduler as a component: every connection and every tenant, each driven by whoever holds its lock."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from headgate.base.tasks import run_until
from headgate.config.parse import ParseCache
from headgate.config.tenants import Tenant
from headgate.map.records import SystemConf
from headgate.ports.git import Forge
from headgate.recipes import blob
from headgate.recipes.lock import write_lock
from headgate.services.context import Context
from headgate.services.scheduler.connection import ConnectionRunner
from headgate.services.scheduler.tenant import TenantRunner
from headgate.store.store import Session


class Scheduler:
    """`run` is the body of the component."""

    def __init__(
        self, context: Context, tenants: dict[str, Tenant], forges: dict[str, Forge], conf: SystemConf
    ) -> None:
        self._context, self._forges, self._conf = context, forges, conf
        self.tenants = {name: TenantRunner(context, tenant, ParseCache()) for name, tenant in tenants.items()}

    @classmethod
    def of(
        cls, context: Context, text: str, tenants: dict[str, Tenant], path: str, forges: dict[str, Forge]
    ) -> Scheduler:
        """`text` is the tenant file that `tenants` were read from."""
        return cls(context, tenants, forges, SystemConf(text, path, hashlib.sha256(text.encode()).hexdigest()))

    async def run(self, session: Session) -> None:
        await self._publish(session)
        works = [runner.run(session) for runner in self.tenants.values()]
        projects = {n: frozenset(p.project for p in r.tenant.projects) for n, r in self.tenants.items()}
        works += [ConnectionRunner(self._context, forge, projects).run(session) for forge in self._forges.values()]
        await run_until(asyncio.Event(), *works)

    async def _publish(self, session: Session) -> None:
        """The tenant file, for processes that do not have it."""
        system, store = self._context.map.system, self._context.store
        async with write_lock(store, session, system.conf_lock.path).hold() as guard:
            value = await blob.read(store, system.conf.path)
            if value is None or msgspec.json.decode(value, type=SystemConf).digest != self._conf.digest:
                await blob.write(store, system.conf.path, msgspec.json.encode(self._conf), guards=[guard])
