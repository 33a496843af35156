"""Remove logs and history that are older than the settings allow, hourly or with `headgate prune`, and upload logs."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx

from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.reader import StoredLogs
from headgate.adapters.logs.retention import DAY_MS, Pruned, RetentionPolicy, prune
from headgate.adapters.logs.upload import Uploads
from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.adapters.work.directory import remove
from headgate.base.errors import UserError
from headgate.cli.identity.credentials import as_client
from headgate.cli.jobs import log_store, retention_policy
from headgate.cli.settings import Settings, find, read
from headgate.cli.store.urls import MEMORY, open_to_read
from headgate.cli.terminal.say import say
from headgate.map.places import Map
from headgate.ports.history import HistoryKeeper, HistoryUnavailable
from headgate.ports.logstore import Following, LogStore, LogStoreError
from headgate.services.context import Context
from headgate.store.types import StoreError
from headgate.web.access import PeerFleet
from headgate.web.buildlogs import RemoteLogs
from headgate.web.logfiles import over

log = logging.getLogger("headgate.logs")

PRUNE_INTERVAL_S = 3_600.0
NOTHING = (
    "Nothing was removed, because the settings have no limits. Limits are [logs] keep_days, artifacts_keep_days and "
    "size_max_mb, and [database] keep_days."
)


@dataclass(frozen=True, slots=True)
class Retention:
    """Hold the limits for logs and history of old builds, and where these are stored."""

    policy: RetentionPolicy
    store: LogStore | None
    own: Path | None
    """Directory of an executor's logs; None if there is a log store, or if this process removes no logs."""
    history: HistoryKeeper | None
    history_days: float

    def __bool__(self) -> bool:
        logs = bool(self.policy) and (self.store is not None or self.own is not None)
        return logs or bool(self.history is not None and self.history_days)

    async def logs(self, now_ms: int, running: Callable[[str], bool], *, dry: bool = False) -> Pruned:
        """Remove old logs, and return a summary. Raise LogStoreError."""
        if self.policy and self.own is not None:
            own = self.own

            async def drop(build: str) -> None:
                # Removing thousands of files takes seconds: do it in a thread, not in the event loop.
                await asyncio.to_thread(remove, own / build)

            return await prune(LogDirectory(own), self.policy, now_ms, running, dry=dry, drop=drop)
        if self.policy and self.store is not None:
            return await prune(self.store, self.policy, now_ms, running, dry=dry)
        return Pruned()

    async def buildsets(self, now_ms: int, *, dry: bool = False) -> int:
        """Remove old buildsets, and return their number. Raise HistoryUnavailable."""
        if self.history is None or not self.history_days:
            return 0
        return await self.history.forget(int(now_ms - self.history_days * DAY_MS), dry=dry)


def retention(settings: Settings, history: HistoryKeeper | None, *, own: bool) -> Retention:
    """Return the retention for a process with the history or, with `own`, for an executor's own logs. Raise
    UserError."""
    store, days = log_store(settings), settings.number("database", "keep_days")
    directory = settings.place("executor", "log_dir", "logs") if own and store is None else None
    return Retention(retention_policy(settings), store, directory, history, days)


async def pruned(found: Retention, context: Context) -> None:
    """Remove old logs and buildsets every hour, until cancelled."""
    # With an empty mirror, running builds would count as finished, and this would remove their logs.
    await context.mirror.ready()
    # A retention without limits is false, so that the task ends immediately.
    while found:
        try:
            done = await found.logs(context.now_ms(), lambda build: not over(context, build)())
            buildsets = await found.buildsets(context.now_ms())
            if done.builds or done.files or buildsets:
                log.info("removed because of their age or size: %s; %s buildsets of the history", done, buildsets)
        except (LogStoreError, HistoryUnavailable) as error:
            # An outage of the log store or the database is harmless: the next run removes the old data.
            log.error("cannot remove old logs or history, retrying in an hour: %s", error)
        await asyncio.sleep(PRUNE_INTERVAL_S)


def stored_logs(settings: Settings) -> StoredLogs | None:
    """Return the reader of the log store, or None without one. Raise UserError."""
    store = log_store(settings)
    return StoredLogs(store) if store is not None else None


def remote(settings: Settings, context: Context, stack: AsyncExitStack) -> RemoteLogs:
    """Return a reader of logs on executors in other processes; it works until `stack` closes. Raise UserError."""
    trust = as_client(settings)

    @functools.cache
    def client() -> httpx.AsyncClient:
        # Reading the certificates of the machine's authorities takes 70 ms, and many processes never need them.
        made = httpx.AsyncClient(verify=trust)
        stack.push_async_callback(made.aclose)
        return made

    return RemoteLogs(context, client, PeerFleet(context))


def uploads(
    settings: Settings,
    log_root: Path,
    context: Context,
    stack: AsyncExitStack,
    works: list[Coroutine[Any, Any, None]],
) -> Following | None:
    """Return the uploader of an executor's logs to the log store, or None without a store. Add its task to `works`, and
    its end to `stack`. Raise UserError."""
    store = log_store(settings)
    if store is None:
        return None
    interval_s = settings.number("logs", "upload_interval")
    found = Uploads(
        LocalLogs(log_root),
        store,
        context.now_ms,
        host=context.settings.hostname,
        interval_s=interval_s,
        running=lambda build: not over(context, build)(),
    )

    async def works_on() -> None:
        # As in `pruned`: without the mirror, running builds would count as finished.
        await context.mirror.ready()
        await found.run()

    works.append(works_on())
    stack.push_async_callback(found.close)
    return found


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--dry-run", "dry", is_flag=True, help="Print what would be removed, without removing it.")
def command(config: str | None, dry: bool) -> None:
    """Remove logs, artifacts and history that are older than the settings allow.

    Schedulers and executors do this every hour; this command does it now. Without a log store, it removes only logs on
    this machine. It never touches running builds, or builds that finished within the last hour.
    """
    settings = read(find(config))
    try:
        history = SqlHistory(settings.dburi)
    except HistoryError as error:
        raise UserError(str(error)) from error
    try:
        found = retention(settings, history, own=True)
        if not found:
            say(NOTHING)
            return
        for line in asyncio.run(_pruned(found, settings, dry)):
            say(line)
    except (LogStoreError, HistoryUnavailable, StoreError) as error:
        raise UserError(str(error)) from error
    finally:
        history.close()


async def _pruned(found: Retention, settings: Settings, dry: bool) -> list[str]:
    """Remove old logs and history, and return lines for the user. Raise LogStoreError, HistoryUnavailable, StoreError,
    UserError."""
    now_ms, running = int(time.time() * 1000), await _running(settings)
    verb = "would be removed" if dry else "were removed"
    done = await found.logs(now_ms, running.__contains__, dry=dry)
    buildsets = await found.buildsets(now_ms, dry=dry)
    builds = [f"logs of build {build}" for build in done.builds] if dry else []
    return [*builds, f"{done}, and {buildsets} buildsets of the history {verb}"]


async def _running(settings: Settings) -> set[str]:
    """Return the ids of running and requested builds, and further names to leave alone. Raise StoreError, UserError."""
    if settings.store_url == MEMORY:
        raise UserError("the state is in the memory of another process, which removes old data itself")
    # Open it for reading only, so that a running Headgate need not stop.
    reader = await open_to_read(settings.store_url)
    try:
        # Take all elements of the paths: a build's id may occur at any depth.
        return {name for entry in await reader.list(Map().executor.path) for name in entry.path.split("/")}
    finally:
        await reader.close()
