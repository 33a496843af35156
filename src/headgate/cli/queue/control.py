"""Implement commands that change queues: post, withdraw, seek, pause, resume, schedule, unschedule, bound."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from headgate.base.errors import UserError
from headgate.base.ids import fresh
from headgate.base.texts import line
from headgate.cli.queue.operator import operator
from headgate.cli.queue.views import SHOWN_MAX, config_option, json_option, partition_named, show, time_shown
from headgate.cli.terminal.say import say
from headgate.ports.messages import NewMessage, PostRefused, QueueGone
from headgate.queue.client import Calendar
from headgate.queue.messages.client import MessageClient
from headgate.queue.messages.records import BODY_MAX_BYTES
from headgate.queueing.ids import is_id, parse_last
from headgate.queueing.partitions import PARTITIONS_MAX, PRIORITIES_MAX, QueuePartition, shape_for

_many = click.IntRange(0)


@click.command()
@config_option
@click.argument("queue")
@click.argument("body", default="-")
@click.option(
    "--partition", type=click.IntRange(1, PARTITIONS_MAX), help="The partition. Default: the server chooses one."
)
@click.option(
    "--key",
    "of",
    default="",
    help="Choose the partition by this key: messages with the same key stay in order, in one partition.",
)
@click.option(
    "--priority", default="", metavar="PRIORITY", help="high, normal, low, or a number; 1 is the highest priority."
)
@click.option("--ttl", "ttl_s", type=int, metavar="SECONDS", help="How long to keep the message.")
@click.option(
    "--create",
    "partitions",
    metavar="PARTITIONS",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="If the queue does not exist, create it with this many partitions.",
)
@click.option(
    "--priorities",
    type=click.IntRange(1, PRIORITIES_MAX),
    help="If the queue does not exist, create it with this many priorities. Default with --priority: 3.",
)
@click.option(
    "--delay",
    "delay_s",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Deliver the message after this delay.",
)
@click.option(
    "--at",
    default="",
    metavar="TIME",
    help="Deliver the message at this time, such as 2026-01-31T12:00:00Z, or as seconds since 1970.",
)
@click.option("--hold", is_flag=True, help="Let later messages in the same partition wait for this one.")
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
    """Post BODY (default: standard input) to QUEUE, and create the queue if it does not exist."""
    # The server refuses a longer body; endless input must not fill the memory.
    text = sys.stdin.read(BODY_MAX_BYTES + 1) if body == "-" else body
    message = NewMessage(queue, text, fresh(), partition, ttl_s, of, delay_s, at, hold, priority)
    usual = (priorities, priorities) if priorities else shape_for(message.priority, message.partition)
    made = asyncio.run(_posted(config, message, partitions or usual[0], usual[1]))
    say(f"posted to {queue}" + (", a new queue" if made else ""))


async def _posted(config: str, message: NewMessage, partitions: int, priorities: int) -> bool:
    """Post the message, and return whether its queue had to be created."""
    async with operator(config) as at:
        try:
            await at.client.post(message)
        except QueueGone:
            # Post first and create only on failure: nearly all queues exist, so that is usually one request.
            await at.client.create(message.queue, partitions, priorities)
            await at.client.post(message)
            return True
        return False


@click.command()
@config_option
@click.argument("partition")
@click.argument("ids", nargs=-1, required=True)
def withdraw(config: str, partition: str, ids: tuple[str, ...]) -> None:
    """Delete delayed messages of PARTITION by their IDS, which `headgate queue delayed` shows."""
    if wrong := [id for id in ids if not is_id(id)]:
        raise UserError(f"{wrong[0]}: this is not a message id, which has 32 hex digits")
    # Remove duplicates, because the answer counts messages.
    count = asyncio.run(_withdrawn(config, partition_named(partition), tuple(dict.fromkeys(ids))))
    say(f"{count} withdrawn")
    if count < len(set(ids)):
        raise UserError("the other ids are not, or no longer, among the delayed messages of this partition")


async def _withdrawn(config: str, partition: QueuePartition, ids: tuple[str, ...]) -> int:
    async with operator(config) as at:
        return await Calendar(at.client).withdraw(partition, ids)


@click.command()
@config_option
@click.argument("partition")
@click.argument("to")
def seek(config: str, partition: str, to: str) -> None:
    """Move the workers' position in PARTITION, so that they continue after TO.

    TO is `start`, `now`, a message id, seconds since 1970, or a time such as 2026-01-31T12:00:00Z.
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
        raise UserError(f"{to}: give start, now, a message id, or a time ({error})") from error
    return to


@click.command()
@config_option
@click.argument("partitions", nargs=-1, required=True)
def pause(config: str, partitions: tuple[str, ...]) -> None:
    """Pause PARTITIONS: workers finish running jobs, and start no others until you resume the partitions."""
    asyncio.run(_steered(config, [partition_named(text) for text in partitions], paused=True))


@click.command()
@config_option
@click.argument("partitions", nargs=-1, required=True)
def resume(config: str, partitions: tuple[str, ...]) -> None:
    """Resume paused PARTITIONS."""
    asyncio.run(_steered(config, [partition_named(text) for text in partitions], paused=False))


async def _steered(
    config: str, partitions: list[QueuePartition], *, paused: bool | None = None, seek: str | None = None
) -> None:
    async with operator(config) as at:
        for partition in partitions:
            await at.steer(partition, paused=paused, seek=seek)


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
@click.option(
    "--partition", type=click.IntRange(1, PARTITIONS_MAX), help="The partition. Default: the server chooses one."
)
@click.option(
    "--key",
    default="",
    help="Choose the partition by this key: messages with the same key stay in order, in one partition.",
)
@click.option(
    "--priority", default=None, metavar="PRIORITY", help="high, normal, low, or a number; 1 is the highest priority."
)
@click.option("--ttl", type=int, metavar="SECONDS", help="How long to keep each message.")
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
    """Post BODY to QUEUE at the times of CRON: `minute hour day month weekday`, all of which must match.

    The command creates the schedule NAME, or changes it. {time} in BODY stands for the scheduled time of the message.
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
    say(f"{name}: next message at {time_shown(asyncio.run(_scheduled(config, queue, name, wanted)))}")


async def _scheduled(config: str, queue: str, name: str, wanted: dict[str, Any]) -> str:
    """Set the schedule, and create its queue if it is missing; return the time of its next message."""
    async with operator(config) as at:
        try:
            return await Calendar(at.client).schedule(queue, name, wanted)
        except QueueGone:
            # Create the queue only on failure, as `_posted` does.
            await at.client.create(queue, *shape_for(wanted.get("priority", ""), wanted.get("partition")))
            return await Calendar(at.client).schedule(queue, name, wanted)


@click.command()
@config_option
@json_option
@click.argument("queue")
def schedules(config: str, as_json: bool, queue: str) -> None:
    """Show the schedules of QUEUE: the time of the next message, and the error if the last one was rejected."""
    show(asyncio.run(_listed(config, queue, as_json)), as_json)


async def _listed(config: str, queue: str, as_json: bool) -> list[dict[str, Any]]:  # JSON
    async with operator(config) as at:
        return [
            {
                "name": one.name,
                "cron": one.cron,
                "zone": one.zone,
                "missed": one.missed,
                "next_at": time_shown(one.next_at),
                "body": one.body if as_json else line(one.body, SHOWN_MAX),
                **({"priority": one.priority} if as_json else {}),
                "problem": one.problem,
                # The former name, which programs may still read.
                **({"trouble": one.problem} if as_json else {}),
            }
            for one in await Calendar(at.client).schedules(queue)
        ]


@click.command()
@config_option
@click.argument("queue")
@click.argument("name")
def unschedule(config: str, queue: str, name: str) -> None:
    """Remove the schedule NAME of QUEUE."""
    if not asyncio.run(_unscheduled(config, queue, name)):
        raise UserError(f"{queue} has no schedule {name!r}; `headgate queue schedules {queue}` lists them")
    say(f"removed the schedule {name}")


async def _unscheduled(config: str, queue: str, name: str) -> bool:
    async with operator(config) as at:
        return await Calendar(at.client).unschedule(queue, name)


@click.command()
@config_option
@click.argument("queue")
@click.option("--messages", type=_many, metavar="N", help="Maximum number in each partition; 0: no limit.")
@click.option(
    "--bytes", "size", type=_many, metavar="N", help="Maximum size of all bodies in each partition; 0: no limit."
)
@click.option(
    "--full",
    type=click.Choice(("refuse", "drop")),
    help="When a partition is full, refuse posts or drop the oldest messages.",
)
@click.option(
    "--age", type=_many, metavar="SECONDS", help="Maximum time to keep a message; 0: only the message's ttl applies."
)
def bound(config: str, queue: str, messages: int | None, size: int | None, full: str | None, age: int | None) -> None:
    """Limit what QUEUE stores, and print its limits.

    Limits without an option do not change.
    """
    bounds = {"messages_max": messages, "bytes_max": size, "full": full, "age_max": age}
    now = asyncio.run(
        _bounded(config, queue, {name: str(value) for name, value in bounds.items() if value is not None})
    )
    say(f"{queue}: {_bounds_shown(now)}")


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
    # The list begins at this name, so without such a queue it shows the next one.
    if not page or page[0]["queue_name"] != queue:
        raise QueueGone(queue)
    return page[0]


def _bounds_shown(now: Mapping[str, Any]) -> str:  # JSON
    sizes = [f"{now[f'{what}_max']} {what}" for what in ("messages", "bytes") if now.get(f"{what}_max")]
    bounds = [f"at most {' and '.join(sizes)} in each partition, then {now['full']}"] if sizes else []
    bounds += [f"messages are kept at most {now['age_max']} s"] if now.get("age_max") else []
    return "; ".join(bounds) or "no limits"
