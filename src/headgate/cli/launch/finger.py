"""Start the gateway that serves logs over finger, as the settings say."""

from __future__ import annotations

import asyncio
import logging

from headgate.adapters.process.joblog import follow
from headgate.base.errors import UserError
from headgate.cli.identity.tls import tls_of_finger
from headgate.cli.launch.process import Process
from headgate.cli.launch.retention import remote
from headgate.services.membership import Membership
from headgate.store.store import Session
from headgate.web.buildlogs import BuildLogs
from headgate.web.finger.gateway import Gateway
from headgate.web.finger.server import serve

log = logging.getLogger("headgate.finger")


async def add_fingergw(process: Process, *, alone: bool = True) -> None:
    """Serve beside other components in one process: if the address cannot be used, they continue to work. Raise
    UserError."""
    settings, context = process.settings, process.context
    tls, member = tls_of_finger(settings), Membership(context, "fingergw")
    logs = BuildLogs(
        settings.place("executor", "log_dir", "logs"), follow, await remote(settings, context, process.stack)
    )
    gateway = Gateway(context, process.tenants, logs)
    host, port = settings.get("fingergw", "listen_address"), int(settings.number("fingergw", "port", 79))
    name = f"[{context.hostname}]" if ":" in context.hostname else context.hostname

    def bound(number: int) -> None:
        public = settings.get("fingergw", "public_port") or str(number)
        member.say(url=f"{'fingers' if tls else 'finger'}://{name}:{public}")
        print(f"Logs are served over finger at port {number}", flush=True)

    async def serving() -> None:
        try:
            await serve(gateway.answer, host, port, process.stop, bound, tls)
        except UserError as error:
            # The usual port, 79, is privileged: a gate must not stay down because it may not serve finger.
            if alone:
                raise
            log.error("logs are not served over finger: %s", error)

    async def member_until_done(session: Session) -> None:
        await asyncio.Event().wait()

    process.servers.append(serving())
    process.join(member, member_until_done)
