"""Keep schedules: messages that the server posts at recurring times.

A schedule moves on to its next time in the transaction that posts the message: however many servers there are, and
whatever ends them, there is one message for each time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from headgate.config.cron import BadTime, next_in, schedule
from headgate.queue.messages import queues
from headgate.queue.messages.bounds import UNLIMITED, ApplicationLimits, ApplicationRoom
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.holders import LeaseMoment
from headgate.queue.messages.later import seconds
from headgate.queue.messages.posts import MessagePost, post_group
from headgate.queue.messages.records import TTL_DEFAULT_S, InvalidPost, MessageDraft
from headgate.queueing.partitions import QueuePartition, priority_named

SCHEDULES_MAX = 1_000
"""Limit on the schedules of one queue."""
ALL_MAX = 10_000
"""Limit on the schedules of all queues of an application, which may be due at the same time."""
TOGETHER_MAX_BYTES = 4_000_000
"""Limit on the bytes of the messages of one queue's schedules, which are listed together."""
TOGETHER_MAX = 50
"""Schedules handled in one transaction."""
EACH_MAX = 10
"""Messages that one schedule posts in one transaction."""
LATE_S = 60
"""Seconds after which a time that has passed counts as missed."""
MISSED_MAX_S = 7 * 86_400
"""Seconds after which a missed time is skipped even where `missed` is `all`."""
CRON_MAX_CHARS = 200
BODY_MAX_CHARS = 65_536
AGAIN_S = 86_400
"""Seconds after which a schedule whose times cannot be computed is tried again."""
MOMENT = "{time}"
"""Placeholder in a body for the time of the message."""
_COLUMNS = "name, cron, zone, missed, partition, key, ttl_s, body, next_ms, trouble"
_PRIORITY = (
    "coalesce((select priority from schedule_priority as said where said.queue = schedule.queue"
    " and said.name = schedule.name), '')"
)


class MessageSchedule(msgspec.Struct, frozen=True):
    """Describe a schedule, as requested and as shown."""

    name: str
    cron: str
    """`minute hour day month weekday`; all of them must match."""
    body: str
    zone: str = "UTC"
    missed: str = "once"
    """For times that passed while no server ran, `once` posts one message in all, `all` one each, `skip` none."""
    partition: int | None = None
    key: str = ""
    ttl: int = TTL_DEFAULT_S
    next_at: str = ""
    """Time of the next message, in seconds since 1970."""
    problem: str = ""
    """Why the last message was refused; empty: none was."""
    priority: str = ""
    """Priority of the messages; empty: the usual one, or that of the partition."""
    former_problem: str = msgspec.field(name="trouble", default="")
    """Deprecated: the same as `problem`."""

    def __post_init__(self) -> None:
        # A server of the previous release answers with the former name only.
        problem = self.problem or self.former_problem
        msgspec.structs.force_setattr(self, "problem", problem)
        msgspec.structs.force_setattr(self, "former_problem", problem)


def put(database: Database, app: str, name: str, wanted: MessageSchedule, now_ms: int) -> MessageSchedule:
    """Make or change a schedule; if its times stay the same, so does its next time. Raise NoQueue, InvalidPost."""
    queue = queues.find(database, app, name)
    if wanted.partition is not None and wanted.partition > queue.partitions:
        raise InvalidPost({"partition": f"the queue has partitions 1 to {queue.partitions}"})
    try:
        priority_named(wanted.priority, queue.priorities)
    except ValueError as error:
        raise InvalidPost({"priority": str(error)}) from error
    known = database.execute(
        "select cron, zone, next_ms from schedule where queue = ? and name = ?", (queue.id, wanted.name)
    )
    if not known:
        (count,) = database.execute("select count(*) from schedule where queue = ?", (queue.id,))[0]
        if count >= SCHEDULES_MAX:
            raise InvalidPost({"name": f"a queue has at most {SCHEDULES_MAX} schedules"})
        (count,) = database.execute(
            "select count(*) from schedule where queue in (select id from queue where app = ?)", (app,)
        )[0]
        if count >= ALL_MAX:
            raise InvalidPost({"name": f"an application has at most {ALL_MAX} schedules"})
    others = "select coalesce(sum(octet_length(body)), 0) from schedule where queue = ? and name <> ?"
    (size,) = database.execute(others, (queue.id, wanted.name))[0]
    if size + len(wanted.body.encode()) > TOGETHER_MAX_BYTES:
        raise InvalidPost(
            {"body": f"the messages of a queue's schedules have at most {TOGETHER_MAX_BYTES} bytes together"}
        )
    first_ms = _next_ms(wanted.cron, wanted.zone, now_ms)
    if known and known[0][:2] == (wanted.cron, wanted.zone):
        # A schedule that is stored again at every start of a program must not lose a time that is about to come.
        first_ms = known[0][2]
    _forget(database, queue.id, wanted.name)
    values: Row = (queue.id, wanted.name, wanted.cron, wanted.zone, wanted.missed, wanted.partition or 0, wanted.key)
    values = (*values, wanted.ttl, wanted.body, first_ms, "")
    database.insert("schedule", f"queue, {_COLUMNS}", [values])
    database.growth.add_extra(queue.id, 1, len(wanted.body.encode()))
    if wanted.priority:
        database.insert("schedule_priority", "queue, name, priority", [(queue.id, wanted.name, wanted.priority)])
    return msgspec.structs.replace(wanted, next_at=seconds(first_ms), problem="")


def remove(database: Database, app: str, name: str, which: str) -> int:
    """Remove schedules and return how many there were. Raise NoQueue."""
    queue = queues.find(database, app, name)
    return _forget(database, queue.id, which)


def _forget(database: Database, queue: int, name: str) -> int:
    """Delete the schedule and return how many there were: 0 or 1."""
    place = "where queue = ? and name = ?"
    database.execute(f"delete from schedule_priority {place}", (queue, name))
    gone = database.execute(f"delete from schedule {place} returning octet_length(body)", (queue, name))
    for (size,) in gone:
        database.growth.add_extra(queue, -1, -size)
    return len(gone)


def every(database: Database, queue: int) -> list[MessageSchedule]:
    """Return the schedules by name."""
    rows = database.execute(f"select {_COLUMNS}, {_PRIORITY} from schedule where queue = ? order by name", (queue,))
    return [
        MessageSchedule(
            name, cron, body, zone, missed, partition or None, key, ttl_s, seconds(next_ms), problem, priority
        )
        for name, cron, zone, missed, partition, key, ttl_s, body, next_ms, problem, priority in rows
    ]


def next_ms(database: Database) -> int | None:
    """Return when the next message is to be posted, or None."""
    found: int | None = database.execute("select min(next_ms) from schedule")[0][0]
    return found


def post_due(
    database: Database, moment: LeaseMoment, limits: ApplicationLimits = UNLIMITED
) -> list[tuple[str, QueuePartition]]:
    """Post the messages that are due, a bounded number of them; return applications and partitions. Run it in a
    transaction of its own."""
    room = ApplicationRoom(database, limits)
    # The first schedules of each application, then the second ones, and so on.
    turns = (
        "select schedule.queue as of_queue, schedule.name as of_name, row_number() over"
        " (partition by app order by next_ms, schedule.queue, schedule.name) as turn"
        " from schedule join queue on queue.id = schedule.queue where next_ms <= ?"
    )
    due = database.execute(
        f"select queue, {_COLUMNS}, {_PRIORITY} from schedule join ({turns} order by turn, next_ms, of_queue, of_name"
        " limit ?) as found on queue = of_queue and name = of_name order by turn, next_ms, queue, name",
        (moment.now_ms, TOGETHER_MAX),
    )
    posts, of = list[MessagePost](), list[tuple[int, str]]()
    for row in due:
        queue, name, cron, zone, missed, *_, before_ms, _, _ = row
        try:
            moments, then_ms = _passed(cron, zone, missed, before_ms, moment.now_ms)
            problem = ""
        # It was valid when it was stored; an update of the time zone data may have removed its zone.
        except InvalidPost as refused:
            moments, then_ms, problem = [], moment.now_ms + AGAIN_S * 1000, str(refused)
        # The comparison with the time read above lets one server post for it, and finds schedules that were changed.
        sql = "update schedule set next_ms = ?, trouble = ? where queue = ? and name = ? and next_ms = ? returning 1"
        if not database.execute(sql, (then_ms, problem, queue, name, before_ms)):
            continue  # another server was quicker
        # Removing a queue deletes its schedules, so after the update above the queue exists.
        (app, queue_name) = database.execute("select app, name from queue where id = ?", (queue,))[0]
        for at_ms in moments:
            draft = _draft(row, at_ms)
            if full := room.take(app, [draft]):
                _complain(database, queue, name, full)
                break
            posts.append(MessagePost(app, queue_name, (draft,)))
            of.append((queue, name))
    posted = list[tuple[str, QueuePartition]]()
    answers = post_group(database, posts, moment.now_ns, moment.node, moment.chance)
    for post, (queue, name), answer in zip(posts, of, answers, strict=True):
        if isinstance(answer, Exception):
            _complain(database, queue, name, str(answer))
        else:
            posted += [(post.app, QueuePartition(post.queue, one.partition)) for one in answer[0]]
    return posted


def _complain(database: Database, queue: int, name: str, problem: str) -> None:
    """Store why a message was not posted."""
    database.execute("update schedule set trouble = ? where queue = ? and name = ?", (problem[:500], queue, name))


def _draft(row: Row, at_ms: int) -> MessageDraft:
    *_, partition, key, ttl_s, body, _, _, priority = row
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    return MessageDraft(body.replace(MOMENT, at), ttl_s, partition or None, key, priority=priority)


def _passed(cron: str, zone: str, missed: str, from_ms: int, now_ms: int) -> tuple[list[int], int]:
    """Return the times to post messages for, from `from_ms` on, and the next one. Raise InvalidPost."""
    known_ms = {"once": from_ms, "skip": now_ms - LATE_S * 1000, "all": now_ms - MISSED_MAX_S * 1000}[missed]
    at_ms = from_ms if from_ms >= known_ms else _next_ms(cron, zone, known_ms)
    if missed != "all":
        return [at_ms] if at_ms <= now_ms else [], _next_ms(cron, zone, now_ms)
    some = list[int]()
    # If more were missed, the next time stays in the past, and the next transaction continues from there.
    while at_ms <= now_ms and len(some) < EACH_MAX:
        some.append(at_ms)
        at_ms = _next_ms(cron, zone, at_ms)
    return some, at_ms


def _next_ms(cron: str, zone: str, after_ms: int) -> int:
    """Return the next time after `after_ms`. Raise InvalidPost if the schedule is invalid or names no time."""
    fields = cron.split()
    if len(fields) != 5 or len(cron) > CRON_MAX_CHARS:
        raise InvalidPost({"cron": "it must have five fields: minute hour day month weekday, such as 30 9 * * mon-fri"})
    # Steps are exempt: in `mon-fri/2` the digit counts days and names none.
    if any(character.isdigit() for character in fields[4].partition("/")[0]):
        raise InvalidPost({"cron": "write weekdays as mon to sun: programs disagree on their numbers"})
    try:
        found = next_in(schedule(cron), datetime.fromtimestamp(after_ms / 1000, UTC), ZoneInfo(zone))
    except BadTime as bad:
        raise InvalidPost({"cron": str(bad)}) from bad
    # Names are paths to ZoneInfo: it raises ValueError for one that leaves its directory, and in some versions OSError
    # for a directory.
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidPost({"zone": f"{zone[:60]!r} is not a time zone, such as UTC or Europe/Berlin"}) from error
    if found is None:
        raise InvalidPost({"cron": f"{cron!r} names no time in the next {timedelta(days=3_000).days // 365} years"})
    return int(found.timestamp() * 1000)
