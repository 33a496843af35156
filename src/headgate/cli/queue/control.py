"""`headgate queue post | withdraw | seek | pause | resume`: what operators do with queues."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime

import click

from headgate.base.errors import UserError
from headgate.base.ids import fresh
from headgate.cli.queue.operator import operator
from headgate.cli.queue.views import config_option, partition_named
from headgate.cli.terminal.say import say
from headgate.ports.messages import NewMessage, QueueGone
from headgate.queue.messages.calendar import Calendar
from headgate.queueing.ids import is_id, parse_last
from headgate.queueing.partitions import PARTITIONS_MAX, PRIORITIES_MAX, QueuePartition, shape_for


@click.command()
@config_option
@click.argument("queue")
@click.argument("body", default="-")
@click.option("--partition", type=click.IntRange(1, PARTITIONS_MAX), help="Any, without it.")
@click.option(
    "--key", "of", default="", help="Instead of a partition: messages with the same key are in one partition, in order."
)
@click.option("--priority", default="", metavar="PRIORITY", help="high, normal, low, or a number from 1, the highest.")
@click.option("--ttl", "ttl_s", type=int, metavar="SECONDS", help="How long the message is kept.")
@click.option(
    "--create",
    "partitions",
    metavar="PARTITIONS",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="Create the queue with so many partitions if it does not exist.",
)
@click.option(
    "--priorities", type=click.IntRange(1, PRIORITIES_MAX), help="The same; a queue made with --priority has 3."
)
@click.option(
    "--delay",
    "delay_s",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Deliver the message this much later.",
)
@click.option(
    "--at",
    default="",
    metavar="TIME",
    help="Deliver the message at this time, such as 2026-01-31T12:00:00Z, or in seconds since 1970.",
)
@click.option("--hold", is_flag=True, help="Later messages in the same partition wait until this one is delivered.")
def post(
    config: str,
    queue: str,
    body: str,
    partition: int | None,
    of: str,
    priority: str,
    ttl_s: int | None,
    partitions: int | None,
    priorities: int | None,
    delay_s: float,
    at: str,
    hold: bool,
) -> None:
    """Post BODY, or standard input, to QUEUE, which is created if it does not exist."""
    text = sys.stdin.read() if body == "-" else body
    message = NewMessage(queue, text, fresh(), partition, ttl_s, of, delay_s, at, hold, priority)
    usual = (priorities, priorities) if priorities else shape_for(message.priority, message.partition)
    made = asyncio.run(_posted(config, message, partitions or usual[0], usual[1]))
    say(f"posted to {queue}" + (", a new queue" if made else ""))


async def _posted(config: str, message: NewMessage, partitions: int, priorities: int) -> bool:
    """Post the message, and tell whether the queue was created for it."""
    async with operator(config) as at:
        try:
            await at.client.post(message)
        except QueueGone:
            # Try first and create afterwards: for queues that exist, which are nearly all, this is one request.
            await at.client.create(message.queue, partitions, priorities)
            await at.client.post(message)
            return True
        return False


@click.command()
@config_option
@click.argument("partition")
@click.argument("ids", nargs=-1, required=True)
def withdraw(config: str, partition: str, ids: tuple[str, ...]) -> None:
    """Delete messages of PARTITION that are not due yet, by the IDS that `headgate queue delayed` shows."""
    if wrong := [id for id in ids if not is_id(id)]:
        raise UserError(f"{wrong[0]}: this is not an id of a message: it has 32 hex digits")
    # An id that is given twice counts once, as the answer counts messages.
    count = asyncio.run(_withdrawn(config, partition_named(partition), tuple(dict.fromkeys(ids))))
    say(f"{count} withdrawn")
    if count < len(set(ids)):
        raise UserError("the others are not delayed there (any more)")


async def _withdrawn(config: str, partition: QueuePartition, ids: tuple[str, ...]) -> int:
    async with operator(config) as at:
        return await Calendar(at.client).withdraw(partition, ids)


@click.command()
@config_option
@click.argument("partition")
@click.argument("to")
def seek(config: str, partition: str, to: str) -> None:
    """Let the workers continue after TO in PARTITION.

    TO is `start`, `now`, a message id, seconds since 1970, or a time as 2026-01-31T12:00:00Z.
    """
    asyncio.run(_steered(config, [partition_named(partition)], seek=_position(to)))


def _position(to: str) -> str:
    """Convert `to` (start, now, a message id or a time) into a position. Raise UserError."""
    if to == "start":
        return ""
    try:
        if to == "now" or ("-" in to and not is_id(to)):
            moment = datetime.now().astimezone() if to == "now" else datetime.fromisoformat(to).astimezone()
            return f"{moment.timestamp():.6f}"
        parse_last(to)
    except ValueError as error:
        raise UserError(f"{to}: start, now, a message id, or a time is wanted ({error})") from error
    return to


@click.command()
@config_option
@click.argument("partitions", nargs=-1, required=True)
def pause(config: str, partitions: tuple[str, ...]) -> None:
    """Start no more jobs on PARTITIONS until they are resumed; running jobs end."""
    asyncio.run(_steered(config, [partition_named(text) for text in partitions], paused=True))


@click.command()
@config_option
@click.argument("partitions", nargs=-1, required=True)
def resume(config: str, partitions: tuple[str, ...]) -> None:
    """Continue with PARTITIONS."""
    asyncio.run(_steered(config, [partition_named(text) for text in partitions], paused=False))


async def _steered(
    config: str, partitions: list[QueuePartition], *, paused: bool | None = None, seek: str | None = None
) -> None:
    async with operator(config) as at:
        for partition in partitions:
            await at.steer(partition, paused=paused, seek=seek)
