"""What a process does so that logs stay, and so that they do not stay for ever."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.reading import KeptLogs
from headgate.adapters.logs.uploading import Uploads
from headgate.cli.identity.tls import as_client
from headgate.cli.logstore import log_store
from headgate.cli.settings import Settings
from headgate.ports.logstore import Following
from headgate.services.context import Context
from headgate.web.peers.fleet import Fleet
from headgate.web.remote import RemoteLogs


def kept_logs(settings: Settings) -> KeptLogs | None:
    """Return what reads the log store, if there is one.  Raise UserError."""
    store = log_store(settings)
    return KeptLogs(store) if store is not None else None


async def remote(settings: Settings, context: Context, stack: AsyncExitStack) -> RemoteLogs:
    """Return what reads the logs of executors in other processes, for as long as `stack` lasts."""
    client = await stack.enter_async_context(httpx.AsyncClient(verify=as_client(settings)))
    return RemoteLogs(context, client, Fleet(context))


def uploads(
    settings: Settings,
    log_root: Path,
    context: Context,
    stack: AsyncExitStack,
    works: list[Coroutine[Any, Any, None]],
) -> Following | None:
    """Return what puts the logs of an executor into the log store, if there is one; it works with `works`, and ends
    with `stack`.  Raise UserError."""
    store = log_store(settings)
    if store is None:
        return None
    interval_s = settings.number("logs", "upload_interval")
    found = Uploads(LocalLogs(log_root), store, context.now_ms, host=context.hostname, interval_s=interval_s)
    works.append(found.run())
    stack.push_async_callback(found.close)
    return found
