"""`headgate prune`: remove old logs and history now."""

from __future__ import annotations

import asyncio
import time

import click

from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.base.errors import UserError
from headgate.cli.launch.retention import Retention, retention
from headgate.cli.settings import Settings, find, read
from headgate.cli.store.urls import MEMORY, open_to_read
from headgate.cli.terminal.say import say
from headgate.map.places import Map
from headgate.ports.history import HistoryUnavailable
from headgate.ports.logstore import LogStoreError
from headgate.store.types import StoreError

NOTHING = (
    "Nothing is removed: the settings keep everything. [logs] keep_days, artifacts_keep_days and size_max_mb, and "
    "[database] keep_days, say what is to go."
)


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--dry-run", "dry", is_flag=True, help="Print what would be removed, and remove nothing.")
def command(config: str | None, dry: bool) -> None:
    """Remove logs, artifacts and history that are older than the settings allow.

    Schedulers and executors do that every hour; this does it at once. Logs that stay with executors are removed on this
    machine alone. What runs loses nothing, and neither does what ended within the last hour.
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
    """Remove what is old. Raise LogStoreError, HistoryUnavailable, StoreError, UserError."""
    now_ms, running = int(time.time() * 1000), await _running(settings)
    verb = "would be removed" if dry else "were removed"
    done = await found.logs(now_ms, running.__contains__, dry=dry)
    buildsets = await found.buildsets(now_ms, dry=dry)
    builds = [f"build {build}: its logs" for build in done.builds] if dry else []
    return [*builds, f"{done} {verb}; so {verb.split()[0]} {buildsets} buildsets of the history"]


async def _running(settings: Settings) -> set[str]:
    """Return the ids of builds that run or are waited for, and further names that must stay. Raise StoreError,
    UserError."""
    if settings.store_url == MEMORY:
        raise UserError("the state is in the memory of another process, which removes what is old by itself")
    # Beside a running Headgate: it need not stop for this.
    reader = await open_to_read(settings.store_url)
    try:
        # Names of all path elements, not only builds: what must stay is recognised whatever its depth.
        return {name for entry in await reader.list(Map().executor.path) for name in entry.path.split("/")}
    finally:
        await reader.close()
