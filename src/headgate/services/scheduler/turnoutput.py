"""Determine the events and reports of a turn from the difference between two states and the results of items.

Published events describe everything that happens; reports go to the connections that the pipeline names.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from headgate.base.ids import derived
from headgate.base.tasks import about
from headgate.base.texts import line
from headgate.config.drivers import DIALECTS
from headgate.config.files.checks import as_list
from headgate.config.model import Pipeline
from headgate.config.operator.model import Tenant
from headgate.gate.builds.report import build_url, error_of, filled, kind_of, untested
from headgate.gate.items.admission import speaks
from headgate.gate.state.actions import Action, Cancel, Land, Merge, Record, Resume, Run
from headgate.gate.state.change import Change
from headgate.gate.state.model import BuildSet, Item, State
from headgate.gate.state.returns import FileComment
from headgate.gate.state.works import LandRequest
from headgate.gate.state.world import World
from headgate.map.outbox import Answered, OutboxMessage, PublishedEvent, QueueReport, ReportedBuild
from headgate.recipes.requestforms import Open
from headgate.services.context import Context, Outboxes
from headgate.services.publisher import published_event, queue_of

log = logging.getLogger("headgate.pipeline")

T = TypeVar("T")

EVENTS_MAX = 20
"""Limit on the events in one record."""
SUBJECT_MAX = 300
OPTION_MAX = 4_000
"""Limit on the characters of a reporter's option in a pipeline."""
_STARTS = {
    "status": frozenset({"status"}),
    "check": frozenset({"completed"}),
    "label": frozenset({"labeled", "tagged"}),
    "unlabel": frozenset({"unlabeled", "labeled"}),
}
"""Key of a reporter -> actions that triggers may name for the event that it causes; some triggers use only the key."""
_BEGUN = ("pending", "queued", "in_progress")
"""States that a reporter sets when work starts; they start no pipeline."""


async def notified(context: Context, actions: Collection[Action]) -> dict[str, Open]:
    """Return, by id, the requests whose workers must be notified, even if the mirror does not show them yet."""
    found, fresh = dict[str, Open](), {action.id for action in actions if isinstance(action, Run)}
    for action in actions:
        if not isinstance(action, Cancel | Resume) or action.id in fresh:
            continue
        merge = isinstance(action, Cancel) and not action.build
        for queue in [context.merges] if merge else context.zones():
            shown = queue.find(action.id, context.mirror)
            found |= {one.request.id: one for one in ([shown] if shown else await queue.listed(action.id))}
    return found


def batched(events: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the events of one turn in parts that each fit into a record."""
    for start in range(0, len(events), EVENTS_MAX):
        yield events[start : start + EVENTS_MAX]


def turn_events(
    tenant: str,
    pipeline: str,
    before: State,
    after: State,
    actions: Sequence[Action],
    now_ms: int,
    log_url: Callable[[str, str], str] = lambda tenant, build: "",
) -> list[PublishedEvent]:
    """Return the events of a turn: items that were enqueued or reset and finished builds, then the ends of items.

    The events are in the order of the queues.  For reporter jobs, which run after a change has left, only builds are
    published.  `log_url` returns the URL of the logs of a tenant's build.
    """

    def about(kind: str, item: Item, subject: str) -> Iterator[PublishedEvent]:
        """Yield an event for each change of the item."""
        for change in item.circle:
            # The id must differ for each change of a circle; the item's own change has the same id as in an item with
            # one change.
            own = subject if change == item.change else f"{subject} {change.key}"
            event = published_event(kind, own, tenant, pipeline, change, item.id, now_ms)
            yield replace(event, buildset=item.buildset.id) if item.buildset is not None else event

    ended = [action for action in actions if isinstance(action, Record)]
    now = {item.id: item for _, item in after.items()} | {action.item.id: action.item for action in ended}
    earlier = _earlier(before, now)
    found: list[PublishedEvent] = []
    for item in now.values():
        if not item.live:
            continue
        was = earlier(item)
        if was is None and not item.epilogue:
            found += (replace(one, buildset="") for one in about("change-enqueued", item, item.event))
        elif (
            was is not None
            and was.buildset is not None
            and item.buildset is not None
            and was.buildset.id != item.buildset.id
        ):
            found += about("item-reset", item, item.buildset.id)
        events = _builds(was, item, dict(zip(item.circle, about("build-finished", item, ""), strict=True)))
        found += (replace(one, log_url=one.log_url or log_url(tenant, one.build)) for one in events)
    for action in ended:
        if action.item.live and not action.item.epilogue:
            events = about(_end(action), action.item, action.result)
            found += (replace(one, result=action.result, message=action.message) for one in events)
    return found


def _earlier(before: State, now: Mapping[str, Item]) -> Callable[[Item], Item | None]:
    """Return a function from an item to its earlier state, or None. An item that was moved by a promotion has a new id,
    so it is found by its change and event."""
    known = {item.id: item for _, item in before.items()}
    moved = {(item.change.key, item.event): item for id, item in known.items() if id not in now}
    return lambda item: known.get(item.id) or moved.get((item.change.key, item.event))


def _builds(was: Item | None, item: Item, about: Mapping[Change, PublishedEvent]) -> Iterator[PublishedEvent]:
    """Yield an event for each build of the item that has ended since the state `was`."""
    if item.buildset is None:
        return
    jobs = {job.id: job for job in item.buildset.jobs}
    same = was is not None and was.buildset is not None and was.buildset.id == item.buildset.id
    earlier = was.buildset.builds if same and was is not None and was.buildset is not None else {}
    for name, build in item.buildset.builds.items():
        known = earlier.get(name)
        if build.result is None or (known is not None and known.id == build.id and known.result is not None):
            continue
        job = jobs.get(name)
        yield replace(
            about[item.subjects(job)[0] if job is not None else item.change],
            id=derived("build-finished", build.id),
            build=build.id,
            job=job.name if job is not None else name,
            attempt=build.attempt,
            result=build.result,
            voting=build.voting,
            log_url=build.log_url,
        )


def _end(action: Record) -> str:
    if action.result == "DEQUEUED":
        return "change-dequeued"
    if action.result != "SUCCESS":
        return "change-rejected"
    landing = action.item.buildset is not None and action.item.buildset.landing
    return "change-landed" if landing else "change-passed"


def reports(
    before: State,
    after: State,
    actions: Sequence[Action],
    world: World,
    tenant: Tenant,
    all_pipelines: Collection[Pipeline] = (),
) -> Iterator[tuple[str, OutboxMessage]]:
    """Yield (connection, message) pairs, in order: one report for each reporter that the pipeline names.

    A forge gets the reports on its own changes; other connections get the reports on all changes. `all_pipelines` are
    those of the tenant.
    """
    pipeline, forges = world.pipeline, set(world.pipeline.drivers)
    if not pipeline.posts and not forges:
        return
    for reported in _reported(before, after, actions, world):
        for name, hows in _hows(reported.kind, pipeline.reports, tenant):
            posted, driver = name in pipeline.posts, tenant.driver(name)
            if not posted and name not in forges:
                continue
            for (number, how), change in product(enumerate(hows), reported.item.circle):
                if not posted and not _concerns(name, change, reported, tenant):
                    continue
                report = _report(reported.kind, reported.item, change, reported.result, reported.text, world)
                # The key is derived, so that receivers recognise a repeated delivery after a crash.
                key = derived(report.id, name, change.key, str(number))
                queue = (how.get("queue") or queue_of(world.tenant)) if driver == "queue" else ""
                if posted:
                    options = _options(how, driver) if not queue else {}
                    yield name, OutboxMessage(queue, report, how.get("ttl"), options, key)
                else:
                    heard, echoes = _heard(how, reported.kind, change, world), _echoes(how, name, change, all_pipelines)
                    yield name, OutboxMessage("", report, key=key, change=change, how=heard, echoes=echoes)


def _heard(how: Mapping[str, Any], kind: str, change: Change, world: World) -> dict[str, Any]:
    """Return the keys of the reporter. If it must not comment on success but the change names ignored dependencies,
    enable the comment, so that somebody reads about these; a check shows them without a comment."""
    silent = how.get("comment") is False and not how.get("check")
    if silent and kind == "success" and untested(change, world):
        return {**how, "comment": True}
    return dict(how)


def _echoes(how: Mapping[str, Any], name: str, change: Change, pipelines: Collection[Pipeline]) -> bool:
    """Return whether a status or label that a reporter sets may start a pipeline of the tenant. A forge connection
    ignores events that its own account caused, so these need a separate event."""
    if name != change.connection:
        return False  # another account, whose actions cause events
    settings = [(key, words) for key, words in _STARTS.items() if how.get(key) and how[key] not in _BEGUN]
    triggers = [one for each in pipelines for one in each.triggers]
    return any(
        key in one.more or not words.isdisjoint(map(str, as_list(one.more.get("action"))))
        for one in triggers
        if one.connection == name
        for key, words in settings
    )


def _hows(
    kind: str, named: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], tenant: Tenant
) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield the reporters of one kind by connection. When an item is dequeued, also yield reporters that complete an
    earlier report at a forge, such as a pending check, even if the pipeline does not name them for this kind."""
    reporters = named.get(kind, {})
    if kind != "dequeue":
        yield from reporters.items()
        return
    begun = [named.get(one, {}) for one in ("enqueue", "start")]
    for name in dict.fromkeys([*reporters, *begun[0], *begun[1]]):
        dialect, own = DIALECTS.get(tenant.driver(name)), reporters.get(name, ())
        more = dialect.closes([how for one in begun for how in one.get(name, ())], own) if dialect is not None else ()
        yield name, (*own, *more)


def before_merging(world: World, work: LandRequest, item: Item) -> list[OutboxMessage]:
    """Return the reports that a forge needs before it merges: the votes and statuses that it requires."""
    change, found = work.change, list[OutboxMessage]()
    # With the buildset, the key differs from that of the report at the item's end, which a forge would otherwise
    # ignore.
    report = _report("success", item, change, "SUCCESS", work.note, world, again=work.buildset)
    for number, how in enumerate(world.pipeline.reports.get("success", {}).get(change.connection, ())):
        key = derived(report.id, change.connection, change.key, str(number))
        found.append(OutboxMessage("", report, key=key, change=change, how=dict(how)))
    return found


def outboxes(context: Context, world: World) -> Outboxes:
    """Return the outboxes for a turn's reports and requests to forges."""
    return context.outboxes(partial(before_merging, world))


def _concerns(name: str, change: Change, reported: _Reported, tenant: Tenant) -> bool:
    """Return whether a forge receives a report on a change. It receives those on its own changes, unless it already got
    the report, for example before it made the merge, and those on changes of another connection to the same forge.
    """
    if name == change.connection:
        return change.connection not in reported.informed
    host = tenant.hosts.get(name, "")
    same = tenant.driver(name) == tenant.driver(change.connection)
    return bool(host) and same and host == tenant.hosts.get(change.connection)


def _options(how: Mapping[str, Any], driver: str) -> dict[str, str]:
    """Return the pipeline's options of a reporter; for the inventory, all of them in one option, as JSON."""
    if driver == "inventory":
        lists = {key: as_list(value) for key, value in how.items() if key != "set"}
        return {"wanted": msgspec.json.encode({**lists, "set": how.get("set", {})}).decode()}
    return {key: str(value)[:OPTION_MAX] for key, value in how.items()}


class _Reported(NamedTuple):
    """Hold something that a pipeline reports."""

    kind: str
    item: Item
    result: str
    text: str
    informed: frozenset[str] = frozenset()
    """Forges that have received the report before."""


def _reported(before: State, after: State, actions: Sequence[Action], world: World) -> Iterator[_Reported]:
    pipeline = world.pipeline
    ended = [action for action in actions if isinstance(action, Record) and not action.item.epilogue]
    present = {item.id: item for _, item in after.items()}
    now = present | {action.item.id: action.item for action in ended}
    earlier = _earlier(before, now)
    for item in now.values():
        was = earlier(item)
        # A disabled pipeline reports only results, to its `disabled` reporters.
        if world.disabled or not item.live or item.epilogue:
            continue
        if was is None and item.id in present:
            text = filled(pipeline.enqueue_message, item, world) or f"Enqueued in {pipeline.name}."
            yield _Reported("enqueue", item, "", text)
        if item.started and not (was is not None and was.started):
            yield _Reported("start", item, "", filled(pipeline.start_message, item, world))
    announced, merging = bool(pipeline.reports.get("enqueue")), frozenset(world.merging)
    for action in ended:
        kind, item = kind_of(action.result, world), action.item
        # A dequeued item is reported only if its enqueueing or start was.
        if kind != "dequeue" or announced or item.started:
            landed = action.result == "SUCCESS" and item.buildset is not None and item.buildset.landing
            apart = action.refused and speaks(pipeline, item.change.connection)  # reported separately
            informed = merging if landed else frozenset(pipeline.drivers) if apart else frozenset()
            yield _Reported(kind, item, action.result, action.message, informed)


def _report(
    kind: str, item: Item, change: Change, result: str, text: str, world: World, again: str = ""
) -> QueueReport:
    own = kind if change == item.change else f"{kind} {change.key}"
    about = published_event(
        "report", f"{own} {again}".strip(), world.tenant, world.pipeline.name, change, item.id, world.now_ms
    )
    about = replace(about, result=result, message=text)
    buildset = item.buildset
    return QueueReport(
        **asdict(replace(about, buildset=buildset.id) if buildset is not None else about),
        report=kind,
        ref=change.ref if not change.is_change else "",
        event=item.event,
        enqueued_ms=item.enqueued_ms,
        builds=tuple(_build_lines(buildset, world)) if buildset is not None else (),
        subject=line(change.message.strip().partition("\n")[0], SUBJECT_MAX),
        root=world.root_url,
        comments=_comments(buildset) if buildset is not None else {},
        answers=Answered(one.connection, one.source, one.ordering_key, one.id) if (one := change.occasion) else None,
    )


def _comments(buildset: BuildSet) -> dict[str, tuple[FileComment, ...]]:
    """Return file -> the comments that all jobs left on it."""
    found = defaultdict[str, list[FileComment]](list)
    for build in buildset.builds.values():
        for path, comments in (build.returned.file_comments or {}).items():
            found[path] += comments
    return {path: tuple(comments) for path, comments in found.items()}


def _build_lines(buildset: BuildSet, world: World) -> Iterator[ReportedBuild]:
    for job in buildset.jobs:
        build = buildset.builds.get(job.id)
        if build is not None:
            yield ReportedBuild(
                job=job.name,
                build=build.id,
                attempt=build.attempt,
                result=build.result or "",
                voting=build.voting,
                start_ms=build.start_ms,
                end_ms=build.end_ms,
                log_url=build_url(build, world),
                error=error_of(build),
            )


def tell_of(actions: list[Action], after: State) -> None:
    """Log the events that people search for: each test of an item, each landing, and the result of every item."""
    of = (
        {item.buildset.id: item for _, item in after.items() if item.buildset is not None}
        if any(isinstance(action, Merge | Land) for action in actions)
        else {}
    )
    for action in actions:
        match action:
            case Merge(work=work) | Land(work=work) if (item := of.get(work.buildset)) is not None:
                # People search the log for a change, so these lines carry its ids.
                with about(change=item.change.id, item=item.id, buildset=work.buildset):
                    text = "passed; landing it" if isinstance(action, Land) else "will be tested"
                    log.info("%s %s", _name(item.change), text)
            case Record(item=item, result=result):
                buildset = item.buildset.id if item.buildset else ""
                with about(change=item.change.id, item=item.id, buildset=buildset):
                    log.info("%s leaves: %s", _name(item.change), result)
            case _:
                pass


def _name(change: Change) -> str:
    """Return the id of a change with its project: people use one topic in several projects."""
    return f"{change.id} of {change.project.partition('/')[2]}"
