"""What a turn has to tell others: the difference of two states, and what came of items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.gate.model import Action, Item, Record, State
from headgate.map.records import Notice
from headgate.services.notices import notice


def notices(
    tenant: str, pipeline: str, before: State, after: State, asked: Sequence[Action], now_ms: int
) -> list[Notice]:
    """In the order of the queues: enqueued, reset, builds finished; then the ends of items."""

    def about(kind: str, item: Item, what: str) -> Notice:
        told = notice(kind, what, tenant, pipeline, item.change, item.id, now_ms)
        return replace(told, buildset=item.buildset.id) if item.buildset is not None else told

    earlier = {item.id: item for _, item in before.items()}
    ended = [action for action in asked if isinstance(action, Record)]
    now = {item.id: item for _, item in after.items()} | {action.item.id: action.item for action in ended}
    found: list[Notice] = []
    for id, item in now.items():
        if not item.live:
            continue
        was = earlier.get(id)
        if was is None:
            found.append(replace(about("change-enqueued", item, item.event), buildset=""))
        elif was.buildset is not None and item.buildset is not None and was.buildset.id != item.buildset.id:
            found.append(about("item-reset", item, item.buildset.id))
        found += _builds(was, item, about("build-finished", item, ""))
    for action in ended:
        if action.item.live:
            told = about(_end(action), action.item, action.result)
            found.append(replace(told, result=action.result, message=action.message))
    return found


def _builds(was: Item | None, item: Item, about: Notice) -> Iterator[Notice]:
    """Those that ended since."""
    if item.buildset is None:
        return
    same = was is not None and was.buildset is not None and was.buildset.id == item.buildset.id
    earlier = was.buildset.builds if same and was is not None and was.buildset is not None else {}
    for name, build in item.buildset.builds.items():
        known = earlier.get(name)
        if build.result is None or (known is not None and known.id == build.id and known.result is not None):
            continue
        yield replace(
            about,
            id=derived("build-finished", build.id),
            build=build.id,
            job=name,
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
