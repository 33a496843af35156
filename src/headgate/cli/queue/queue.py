"""Define the group of commands `headgate queue`."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import click

from headgate.base.errors import UserError
from headgate.cli.groups import LazyGroup
from headgate.cli.queue.control import bound, pause, post, resume, schedule, schedules, seek, unschedule, withdraw
from headgate.cli.queue.operator import operator, store_of, trust_of
from headgate.cli.queue.views import Row, config_option, dead, delayed, json_option, lag, list_, peek, replay, show
from headgate.cli.store.urls import open_with_warnings
from headgate.queue.messages.client import MessageClient
from headgate.queue.workers.progress import LEGACY_TREE, legacy_progress, take_over, with_legacy_tree
from headgate.store.store import Store
from headgate.store.types import StoreError


@click.command("import")
@config_option
@json_option
@click.option("--from", "url", metavar="URL", help="URL of the application on the old server. Default: from FILE.")
@click.option("--key", default=None, help="Key of that application. Default: from FILE.")
def import_(config: str, as_json: bool, url: str | None, key: str | None) -> None:
    """Import the progress of the original qdo, from its queue `qdo_status` or from `partitions` in its ZooKeeper.

    Progress only moves forward, and partitions that a worker is processing do not change. The tree `queues/QUEUE` needs
    no import.
    """
    show(asyncio.run(_imported(config, url, key)), as_json)


async def _imported(config: str, url: str | None, key: str | None) -> list[Row]:
    async with operator(config) as at:
        if url is None:
            found = await legacy_progress(at.client)
        else:
            async with MessageClient.open([url], at.file.key if key is None else key, tls=trust_of(at.file)) as client:
                found = await legacy_progress(client)
        backend = await open_with_warnings(store_of(at.file))
        try:
            found = with_legacy_tree(found, await backend.list(f"{at.file.root}/{LEGACY_TREE}"))
            store = Store(backend)
            return [
                {
                    "partition": str(partition),
                    "last": found[partition],
                    "outcome": await take_over(store, at.app, partition, found[partition]),
                }
                for partition in sorted(found)
            ]
        except StoreError as error:
            raise UserError(str(error)) from error
        finally:
            await backend.close()


class QueueCommands(LazyGroup):
    later: ClassVar = {"serve": "headgate.cli.queue.serve:serve"}  # it imports a complete server


@click.group(name="queue", cls=QueueCommands)
def command() -> None:
    """Serve and inspect message queues, and control the workers that process them."""


for one in (
    list_,
    lag,
    peek,
    delayed,
    bound,
    post,
    withdraw,
    schedule,
    schedules,
    unschedule,
    seek,
    pause,
    resume,
    dead,
    replay,
    import_,
):
    command.add_command(one)
