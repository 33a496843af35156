"""Implement `headgate queue list | lag | peek | delayed | dead | replay`: show queues, groups and dead letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import line, plain_json
from headgate.cli.queue.operator import Operator, operator
from headgate.cli.queue.workerfile import DEFAULT
from headgate.cli.terminal.say import pass_on, say
from headgate.map.workers import WorkerRecord
from headgate.ports.messages import NewMessage, PostRefused, QueueGone
from headgate.queue.client import Calendar
from headgate.queue.messages.client import MessageLeasing
from headgate.queue.messages.holders import DEFAULT_GROUP
from headgate.queue.workers.progress import PartitionShape, PartitionStatus, shape, time_of
from headgate.queueing.ids import START, Position, position_of
from headgate.queueing.message import DeadLetter, dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, RESERVED, QueuePartition, parse_partition, priority_of
from headgate.queueing.progress import position

Row = dict[str, Any]  # JSON

STORE, SERVER = "store", "server"
"""Where the progress of a group is stored."""
SHOWN_MAX = 60
"""Number of characters of a body in a table."""
PAGE = 500
"""Number of dead letters to read in one request."""
DEAD = QueuePartition(DEAD_LETTERS)

config_option = click.option(
    "-c",
    "--config",
    metavar="FILE",
    default=DEFAULT,
    show_default=True,
    help="The workers' settings file. If it does not exist, the message server on this machine is used.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Describe the progress of one group of workers in one partition."""

    partition: QueuePartition
    name: str
    """Name of the group; empty for workers with a store that name none."""
    place: str
    """STORE or SERVER: where the progress is stored."""
    worker: str
    """Worker that owns the partition, or empty."""
    at: Position
    retrying: int

    def shape(self) -> PartitionShape:
        """Convert to the form that is printed for partitions of workers with a store."""
        state = "processed" if self.worker else "waiting"
        return PartitionShape(str(self.partition), state, self.worker, time_of(self.at), self.retrying)


async def of_server(at: Operator, partitions: list[QueuePartition], only: str = "") -> list[GroupStatus]:
    """Return the state of groups whose progress the server stores; with `only`, of that group, even if it has not
    started yet."""
    found: list[GroupStatus] = []
    for queue in sorted({partition.queue for partition in partitions}):
        try:
            rows = await MessageLeasing(at.client).partition_status(queue, only)
        except (QueueGone, PostRefused):
            continue  # the queue was deleted, or the server is another implementation, without groups
        for one in rows:
            partition = QueuePartition(queue, one.partition)
            groups = [
                GroupStatus(
                    partition,
                    known.group,
                    SERVER,
                    known.worker if known.held else "",
                    position_of(known.processed) if known.processed else START,
                    known.retrying,
                )
                for known in one.groups
            ]
            found += groups or ([GroupStatus(partition, only, SERVER, "", START, 0)] if only else [])
    return found


async def of_store(at: Operator) -> list[GroupStatus]:
    """Return the state of all groups in the workers' store, or an empty list without a store."""
    # Without a store, the server stores the progress, and `of_server` returns it.
    if at.file.leases:
        return []
    return [
        of_progress(partition, partition_status or PartitionStatus(), group, workers)
        for group, partition_statuses, workers in await at.groups()
        for partition, partition_status in partition_statuses.items()
    ]


def of_progress(
    partition: QueuePartition,
    partition_status: PartitionStatus,
    group: str = "",
    workers: Mapping[str, WorkerRecord] | None = None,
) -> GroupStatus:
    """Return the state of one group with a store."""
    record = (workers or {}).get(partition_status.owner)
    worker = f"{partition_status.owner} {record.name}" if record is not None else partition_status.owner
    return GroupStatus(
        partition, group, STORE, worker, position(partition_status.progress), len(partition_status.progress.parked)
    )


def partition_named(text: str) -> QueuePartition:
    """Parse a partition. Raise UserError."""
    try:
        return parse_partition(text)
    except ValueError as error:
        raise UserError(str(error)) from error


def time_shown(seconds: str) -> str:
    """Return a time, given in seconds since 1970, in ISO format."""
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="seconds")


@click.command("list")
@config_option
@json_option
def list_(config: str, as_json: bool) -> None:
    """Show every partition, the worker that processes it, and its progress."""
    show(asyncio.run(_listed(config)), as_json)


async def _listed(config: str) -> list[Row]:
    async with operator(config) as at:
        if at.file.leases:
            found = await of_server(at, _usual(await at.client.partitions()), at.file.group or DEFAULT_GROUP)
            return [msgspec.structs.asdict(one.shape()) for one in found]
        partition_statuses, workers = await at.partition_statuses(), await at.workers()
        # Show queues that no worker knows, as well as queues in records that the server does not list.
        partitions = _usual({*await at.client.partitions(), *partition_statuses})
        shapes = [
            shape(partition, partition_statuses.get(partition), workers, known=partition in partition_statuses)
            for partition in partitions
        ]
        return [msgspec.structs.asdict(one) for one in shapes]


@click.command()
@config_option
@json_option
@click.option("--above", type=int, default=None, help="Exit with status 1 if more messages wait in one partition.")
@click.option(
    "--groups", is_flag=True, help="Show all groups of workers, including those that lease partitions over HTTP."
)
def lag(config: str, as_json: bool, above: int | None, groups: bool) -> None:
    """Show how many messages wait in each partition, and how long the oldest has waited.

    Without --groups, the command shows only the group of workers that FILE configures.
    """
    rows = asyncio.run(_lags(config, every=groups))
    show(rows, as_json)
    if above is not None and any(row["waiting"] > above for row in rows):
        raise SystemExit(1)


async def _lags(config: str, *, every: bool) -> list[Row]:
    async with operator(config) as at:
        partitions = _usual(await at.client.partitions())
        if every:
            known = [*await of_store(at), *await of_server(at, partitions)]
            found = sorted(
                (one for one in known if one.partition in set(partitions)), key=lambda one: (one.partition, one.name)
            )
        elif at.file.leases:
            found = await of_server(at, partitions, at.file.group or DEFAULT_GROUP)
        else:
            partition_statuses = await at.partition_statuses()
            found = [
                of_progress(partition, partition_statuses.get(partition) or PartitionStatus())
                for partition in partitions
            ]
        priorities = await at.client.priorities()
        return [await _lag(at, one, priorities, named=every) for one in found]


def _usual(partitions: Iterable[QueuePartition]) -> list[QueuePartition]:
    """Return the partitions of queues that jobs may process, sorted."""
    return sorted(partition for partition in partitions if not partition.queue.startswith(RESERVED))


async def _lag(at: Operator, of: GroupStatus, priorities: Mapping[str, int], *, named: bool) -> Row:
    found = await at.client.backlog(of.partition, of.at)
    oldest_s = round(time.time() - float(found.oldest_waiting), 1) if found.oldest_waiting else 0
    count = priorities.get(of.partition.queue)
    return {
        "partition": str(of.partition),
        **({"priority": priority_of(of.partition.number, count) if count else ""} if priorities else {}),
        **({"group": of.name or "-", "kept_by": of.place, "worker": of.worker} if named else {}),
        "waiting": found.waiting,
        "oldest_s": oldest_s,
        "retrying": of.retrying,
        "delayed": found.delayed,
    }


@click.command()
@config_option
@json_option
@click.argument("partition")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
def delayed(config: str, as_json: bool, partition: str, limit: int) -> None:
    """Show the delayed messages of PARTITION (QUEUE or QUEUE:N), in the order of delivery."""
    show(asyncio.run(_delayed(config, partition_named(partition), limit, as_json)), as_json)


async def _delayed(config: str, partition: QueuePartition, limit: int, as_json: bool) -> list[Row]:
    async with operator(config) as at:
        return [
            {
                "id": one.message_id,
                "deliver_at": time_shown(one.deliver_at),
                "hold": "yes" if one.hold else "",
                "body": one.body if as_json else line(one.body, SHOWN_MAX),
            }
            for one in await Calendar(at.client).delayed(partition, limit)
        ]


@click.command()
@config_option
@click.argument("partition")
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Start at the oldest stored message, not at the workers' position. Without a store, this is always the case.",
)
def peek(config: str, partition: str, limit: int, every: bool) -> None:
    """Show the next messages of PARTITION (QUEUE or QUEUE:N) as JSON lines, without changing anything."""
    for one in asyncio.run(_peeked(config, partition_named(partition), limit, every)):
        say(one)


async def _peeked(config: str, partition: QueuePartition, limit: int, every: bool) -> list[str]:
    async with operator(config) as at:
        known = {} if every or at.file.leases else await at.partition_statuses()
        partition_status = known.get(partition)
        after = position(partition_status.progress) if partition_status is not None else START
        return [plain_json(msgspec.json.encode(m).decode()) for m in await at.client.read(partition, after, limit)]


def show(rows: list[Row], as_json: bool) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        say(plain_json(msgspec.json.encode(rows).decode()))
        return
    if not rows:
        say("No rows.")
        return
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for row in ({name: name.replace("_", " ") for name in widths}, *rows):
        say("  ".join(str(row[name]).ljust(width) for name, width in widths.items()).rstrip())


async def dead_letters(at: Operator, queue: str = "") -> AsyncIterator[tuple[str, DeadLetter, str]]:
    """Yield the id, the metadata and the body of the dead letters of one queue or of all."""
    try:
        # Fix the end before reading: a replayed message that fails again becomes a new dead letter, so a replay would
        # never end.
        newest = (await at.client.backlog(DEAD, START)).newest
    except QueueGone:
        return  # there are no dead letters yet
    after, end = START, position_of(newest) if newest else START
    while after < end and (page := await at.client.read(DEAD, after, PAGE)):
        for message in page:
            after = position_of(message.message_id)
            try:
                known, body = dead_letter(message.body)
            except ValueError:
                continue  # not a dead letter: another program posted it
            if after <= end and queue in ("", known.queue):
                yield message.message_id, known, body


@click.command()
@config_option
@json_option
@click.option("--queue", default="", help="Show only dead letters of this queue.")
@click.option("--show", "id", metavar="ID", help="Print the body of this dead letter.")
def dead(config: str, as_json: bool, queue: str, id: str | None) -> None:
    """Show the dead letters, and why the workers gave them up."""
    if id is not None:
        pass_on(asyncio.run(_body(config, id)))
        return
    show(asyncio.run(_dead(config, queue)), as_json)


async def _dead(config: str, queue: str) -> list[Row]:
    async with operator(config) as at:
        return [
            {
                "id": id,
                "partition": str(QueuePartition(d.queue, d.partition)),
                "message": d.message_id,
                "tries": d.attempts,
                "error": d.error,
            }
            async for id, d, _ in dead_letters(at, queue)
        ]


async def _body(config: str, id: str) -> str:
    async with operator(config) as at:
        async for found, _, body in dead_letters(at):
            if found == id:
                return body
    raise UserError(f"{id}: there is no such dead letter; `headgate queue dead` lists them")


@click.command()
@config_option
@click.argument("ids", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Replay all dead letters.")
@click.option("--queue", default="", help="Replay all dead letters of this queue.")
def replay(config: str, ids: tuple[str, ...], every: bool, queue: str) -> None:
    """Post dead letters to their partitions again, exactly once, and remove them from the dead letters."""
    if not ids and not every and not queue:
        raise UserError("select dead letters: give IDS, --queue or --all")
    count = asyncio.run(_replayed(config, frozenset(ids), queue))
    say(f"{count} posted again")
    if ids and count < len(set(ids)):
        raise UserError("the other ids are not, or no longer, dead letters")


async def _replayed(config: str, ids: frozenset[str], queue: str) -> int:
    """Post dead letters again, then remove them, and return their number. A repeated call does not post one twice."""
    count = 0
    async with operator(config) as at:
        async for id, known, body in dead_letters(at, queue):
            if ids and id not in ids:
                continue
            # Post before deleting: after a crash in between, the dead letter still exists, and the server recognises
            # the second post by the key, which is derived from the id.
            await at.client.post(NewMessage(known.queue, body, f"replay-{id}", known.partition))
            await at.client.delete(DEAD, id)
            count += 1
    return count
