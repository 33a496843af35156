"""`headgate queue schedule | schedules | unschedule`: messages that the server posts again and again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import click

from headgate.base.errors import UserError
from headgate.base.texts import line
from headgate.cli.queue.operator import operator
from headgate.cli.queue.views import SHOWN_MAX, config_option, json_option, show
from headgate.cli.terminal.say import say
from headgate.ports.messages import QueueGone
from headgate.queue.messages.calendar import Calendar
from headgate.queueing.partitions import PARTITIONS_MAX, shape_for


@click.command()
@config_option
@click.argument("queue")
@click.argument("name")
@click.argument("cron")
@click.argument("body")
@click.option("--zone", default="UTC", show_default=True, help="The time zone of CRON, such as Europe/Berlin.")
@click.option(
    "--missed",
    type=click.Choice(("once", "all", "skip")),
    default="once",
    show_default=True,
    help="For times that passed while no server ran, post one message for all of them, one each, or none.",
)
@click.option("--partition", type=click.IntRange(1, PARTITIONS_MAX), help="Any, without it.")
@click.option(
    "--key", default="", help="Instead of a partition: messages with the same key are in one partition, in order."
)
@click.option(
    "--priority", default=None, metavar="PRIORITY", help="high, normal, low, or a number from 1, the highest."
)
@click.option("--ttl", type=int, metavar="SECONDS", help="How long each message is kept.")
def schedule(
    config: str,
    queue: str,
    name: str,
    cron: str,
    body: str,
    zone: str,
    missed: str,
    partition: int | None,
    key: str,
    priority: str | None,
    ttl: int | None,
) -> None:
    """Post BODY to QUEUE at the times that CRON says: `minute hour day month weekday`, all of which must fit.

    NAME is the schedule's; one of this name is changed. In BODY, {time} stands for the time the message is for.
    """
    options = {
        "cron": cron,
        "body": body,
        "zone": zone,
        "missed": missed,
        "partition": partition,
        "key": key,
        "ttl": ttl,
    }
    wanted = {option: value for option, value in {**options, "priority": priority}.items() if value is not None}
    say(f"{name}: the next message is posted at {_shown(asyncio.run(_scheduled(config, queue, name, wanted)))}")


async def _scheduled(config: str, queue: str, name: str, wanted: dict[str, Any]) -> str:
    """Set the schedule, and create its queue if it is missing; return when it posts next."""
    async with operator(config) as at:
        try:
            return await Calendar(at.client).schedule(queue, name, wanted)
        except QueueGone:
            # Try first and create afterwards, as `post` does.
            await at.client.create(queue, *shape_for(wanted.get("priority", ""), wanted.get("partition")))
            return await Calendar(at.client).schedule(queue, name, wanted)


@click.command()
@config_option
@json_option
@click.argument("queue")
def schedules(config: str, as_json: bool, queue: str) -> None:
    """Show the schedules of QUEUE, when each posts next, and why its last message was refused, if it was."""
    show(asyncio.run(_listed(config, queue, as_json)), as_json)


async def _listed(config: str, queue: str, as_json: bool) -> list[dict[str, Any]]:  # JSON
    async with operator(config) as at:
        return [
            {
                "name": one.name,
                "cron": one.cron,
                "zone": one.zone,
                "missed": one.missed,
                "next_at": _shown(one.next_at),
                "body": one.body if as_json else line(one.body, SHOWN_MAX),
                **({"priority": one.priority} if as_json else {}),
                "trouble": one.problem,
            }
            for one in await Calendar(at.client).schedules(queue)
        ]


def _shown(seconds: str) -> str:
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="seconds")


@click.command()
@config_option
@click.argument("queue")
@click.argument("name")
def unschedule(config: str, queue: str, name: str) -> None:
    """Remove the schedule NAME of QUEUE."""
    if not asyncio.run(_unscheduled(config, queue, name)):
        raise UserError(f"{queue} has no schedule {name!r}; `headgate queue schedules {queue}` lists them")
    say(f"{name} is removed")


async def _unscheduled(config: str, queue: str, name: str) -> bool:
    async with operator(config) as at:
        return await Calendar(at.client).unschedule(queue, name)
