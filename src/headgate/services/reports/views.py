"""Show people the waiting reports, and record their orders for these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.map.records import OutboxCommand, RepositoryProblem
from headgate.map.tree import unescape
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.store.types import Op


class Outbox(NamedTuple):
    """Describe the reports that wait for one connection."""

    connection: str
    waiting: int
    oldest_ms: int | None
    """Time of the oldest waiting report; None: nothing waits."""
    problem: RepositoryProblem | None
    """Why reports wait; None: they are being delivered."""


def outboxes(context: Context) -> list[Outbox]:
    """Describe the outbox of every connection that has received reports, by name."""
    place = context.map.reports
    below = (place.relative(entry.path) for entry in context.mirror.under(place.path))
    names = sorted({unescape(path.partition("/")[0]) for path in below})
    return [outbox(context, name) for name in names]


def outbox(context: Context, connection: str) -> Outbox:
    place, mirror = context.map.reports(connection), context.mirror
    oldest = place.stream.waiting(mirror, limit=1)
    oldest_ms = oldest[0].event.messages[0].report.at_ms if oldest and oldest[0].event.messages else None
    entry = mirror.get(place.problem.path)
    problem = readable(entry, RepositoryProblem) if entry is not None else None
    return Outbox(connection, place.stream.length(mirror), oldest_ms, problem)


def wanted(context: Context, connection: str, do: str) -> Sequence[Op]:
    """Return operations that retry (`do`) waiting reports at once, or drop them, for the caller's commit."""
    return [context.map.reports(connection).command.put(OutboxCommand(do))]
