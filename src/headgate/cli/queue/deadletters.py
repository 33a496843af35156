"""`headgate queue dead | replay`: messages that were given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import click

from headgate.base.errors import UserError
from headgate.cli.queue.operator import Operator, operator
from headgate.cli.queue.views import config_option, json_option, show
from headgate.cli.terminal.say import pass_on, say
from headgate.ports.messages import NewMessage, QueueGone
from headgate.queueing.ids import START, position_of
from headgate.queueing.message import DeadLetter, dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition

PAGE = 500
DEAD = QueuePartition(DEAD_LETTERS)


async def dead_letters(at: Operator, queue: str = "") -> AsyncIterator[tuple[str, DeadLetter, str]]:
    """Yield the id, the metadata and the body of the dead letters of one queue or of all, page by page."""
    try:
        # The end is fixed before the first is read: a message that fails again becomes a new dead letter, and a replay
        # would never end.
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
                continue  # another program has posted something else there
            if after <= end and queue in ("", known.queue):
                yield message.message_id, known, body


@click.command()
@config_option
@json_option
@click.option("--queue", default="", help="Only this queue.")
@click.option("--show", "id", metavar="ID", help="Print the body of this dead letter.")
def dead(config: str, as_json: bool, queue: str, id: str | None) -> None:
    """Show the dead letters and why they were given up."""
    if id is not None:
        pass_on(asyncio.run(_body(config, id)))
        return
    show(asyncio.run(_listed(config, queue)), as_json)


async def _listed(config: str, queue: str) -> list[dict[str, Any]]:  # JSON
    async with operator(config) as at:
        return [
            {"id": id, "partition": str(QueuePartition(d.queue, d.partition)), "tries": d.attempts, "error": d.error}
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
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.option("--queue", default="", help="All of this queue.")
def replay(config: str, ids: tuple[str, ...], every: bool, queue: str) -> None:
    """Post dead letters to their partitions again, each once, and remove them from the dead letters."""
    if not ids and not every and not queue:
        raise UserError("which ones? Name their ids, a --queue, or --all")
    count = asyncio.run(_replayed(config, frozenset(ids), queue))
    say(f"{count} posted again")
    if ids and count < len(set(ids)):
        raise UserError("the others are no dead letters (any more)")


async def _replayed(config: str, ids: frozenset[str], queue: str) -> int:
    """Post dead letters again, each only once however often this is tried, then remove them; return their number."""
    count = 0
    async with operator(config) as at:
        async for id, known, body in dead_letters(at, queue):
            if ids and id not in ids:
                continue
            # Post before deletion: a crash in between leaves the dead letter, and the key derived from its id lets the
            # server recognise the second post.
            await at.client.post(NewMessage(known.queue, body, f"replay-{id}", known.partition))
            await at.client.delete(DEAD, id)
            count += 1
    return count
