"""`headgate queue bound`: limit how much a queue keeps, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from headgate.base.errors import UserError
from headgate.cli.queue.operator import operator
from headgate.cli.queue.views import config_option
from headgate.cli.terminal.say import say
from headgate.ports.messages import PostRefused, QueueGone
from headgate.queue.messages.client import MessageClient

MANY = click.IntRange(0)


@click.command()
@config_option
@click.argument("queue")
@click.option("--messages", type=MANY, metavar="N", help="In each partition; 0: any number.")
@click.option("--bytes", "size", type=MANY, metavar="N", help="Of bodies, in each partition; 0: any number.")
@click.option(
    "--full",
    type=click.Choice(("refuse", "drop")),
    help="What happens beyond a bound: posts are refused, or the oldest messages are deleted.",
)
@click.option(
    "--age", type=MANY, metavar="SECONDS", help="The longest time a message is kept; 0: as long as its own ttl says."
)
def bound(config: str, queue: str, messages: int | None, size: int | None, full: str | None, age: int | None) -> None:
    """Bound what QUEUE stores, and print its bounds.

    Bounds without an option stay as they are.
    """
    bounds = {"messages_max": messages, "bytes_max": size, "full": full, "age_max": age}
    now = asyncio.run(
        _bounded(config, queue, {name: str(value) for name, value in bounds.items() if value is not None})
    )
    say(f"{queue}: {_shown(now)}")


async def _bounded(config: str, queue: str, wanted: Mapping[str, str]) -> dict[str, Any]:  # JSON
    async with operator(config) as at:
        try:
            if wanted:
                await at.client.change(queue, wanted)
            return await _found(at.client, queue)
        except PostRefused as refused:
            raise UserError(f"{queue}: {refused}") from refused
        except QueueGone as gone:
            raise UserError(f"{queue}: there is no such queue") from gone


async def _found(client: MessageClient, queue: str) -> dict[str, Any]:  # JSON
    page = (await client.ask("GET", "", {"details": "true", "limit": "1", "offset": queue})).queues
    if not page or page[0]["queue_name"] != queue:
        raise QueueGone(queue)
    return page[0]


def _shown(now: Mapping[str, Any]) -> str:  # JSON
    sizes = [f"{now[f'{what}_max']} {what}" for what in ("messages", "bytes") if now.get(f"{what}_max")]
    bounds = [f"at most {' and '.join(sizes)} a partition, then {now['full']}"] if sizes else []
    bounds += [f"nothing is kept longer than {now['age_max']} s"] if now.get("age_max") else []
    return "; ".join(bounds) or "no bounds"
