"""Decide which events and changes a pipeline accepts, in the terms of the driver of their connection."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from msgspec.structs import replace

from headgate.config.drivers import DIALECTS
from headgate.config.files.checks import as_list
from headgate.config.forges.facts import PipelineCheck
from headgate.config.forges.git import required_results
from headgate.config.forges.keyterms import Dialect, TermSubject, hindering, missing, triggered
from headgate.config.model import Pipeline, TriggerFilter
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.gate.state.works import Demands
from headgate.gate.state.world import World

_NOTHING: dict[str, object] = {}
_WORDS = {
    "SUCCESS": "success",
    "FAILURE": "failure",
    "MERGE_CONFLICT": "failure",
    "MERGE_FAILURE": "failure",
    "CONFIG_ERROR": "failure",
}
"""Result of a buildset -> word that requirements can use; other results have none."""
ZUUL = "zuul"
"""Name of the connection for events of pipelines."""


def dialect_of(pipeline: Pipeline, connection: str) -> Dialect:
    """Return the terms in which the pipeline describes changes of a connection."""
    return DIALECTS.get(pipeline.drivers.get(connection, "git"), DIALECTS["git"])


def happened(filter: TriggerFilter, pipeline: Pipeline, event: TriggerEvent, known: ChangeState | None) -> bool:
    """Return whether the event is what a trigger waits for. `known` is what the connection knows about the change;
    with None, the requirements on the change are checked later."""
    if not filter.events:
        return False
    dialect = dialect_of(pipeline, filter.connection)
    terms = {name: value for name, value in filter.more.items() if known is not None or name not in dialect.of_change}
    terms |= {"event": list(filter.events), "branch": list(filter.branches), "ref": list(filter.refs)}
    # A key that is absent from the configuration is an empty list here, which is no condition.
    terms = {name: value for name, value in terms.items() if value != []}
    if "ignore-deletes" in dialect.trigger:
        terms["ignore-deletes"] = filter.ignore_deletes
    change_state = (
        # Facts about another patchset must not satisfy conditions on this one.
        known if known is not None and known.change.commit == event.change.commit else ChangeState(event.change)
    )
    seen = TermSubject(change_state, now_ms=event.at_ms, kind=event.kind, happening=event.happening)
    return triggered(dialect, terms, seen)


def ours(world: World, connection: str) -> frozenset[str]:
    """Return the labels and contexts that the pipeline sets itself at this connection."""
    pipeline, sets = world.pipeline, dialect_of(world.pipeline, connection).sets
    hows = (how for reports in pipeline.reports.values() for how in reports.get(connection, ()))
    # Statuses and checks have the context TENANT/PIPELINE.
    return frozenset({f"{world.tenant}/{pipeline.name}"}).union(*map(sets, hows))


def unmet(world: World, change_state: ChangeState, *, entering: bool = False) -> str:
    """Return a message with the first requirement of the pipeline that keeps a change out; empty if none does.
    `entering`: see `lacking`."""
    return next(lacking(world, change_state, entering=entering), "")


def lacking(world: World, change_state: ChangeState, *, entering: bool = False) -> Iterator[str]:
    """Yield messages about the pipeline's requirements that keep a change out. `entering`: the change is about to be
    enqueued; otherwise it already is, and requirements that only count at that moment are not checked."""
    pipeline, change = world.pipeline, change_state.change
    connection = change.connection
    wanted, unwanted = pipeline.require.get(connection, _NOTHING), pipeline.reject.get(connection, _NOTHING)
    dialect = dialect_of(pipeline, connection)
    if not change.is_change and dialect.refs_too:
        return
    if connection in pipeline.require_approved and not change_state.is_approved:
        yield f"{change.key} is not approved"
    if wanted or unwanted:
        now_ms = world.now_ms if entering else None
        seen = TermSubject(change_state, world.tenant, now_ms, ours=ours(world, connection))
        yield from missing(dialect.require, wanted, seen)
        yield from hindering(dialect.require, unwanted, seen)


def ruled_out(world: World, change_state: ChangeState) -> str:
    """Return a message with the first rule of the forge itself that keeps the change from being merged; empty if there
    is none, or if only the pipeline's own results are missing."""
    return next(rulings(world, change_state), "")


def rulings(world: World, change_state: ChangeState) -> Iterator[str]:
    """Yield messages about the rules of the forge itself that keep the change from being merged. A rule on which the
    forge has not decided yet is no obstacle here."""
    details, change = change_state.details, change_state.change
    if details is None or not world.dependent or change.connection not in world.pipeline.lands:
        return
    if details.mergeable is False and not details.draft:
        yield f"{change.key} conflicts with {change.branch}"
    yield from withheld(change_state, ours(world, change.connection))


def withheld(change_state: ChangeState, mine: Collection[str]) -> Iterator[str]:
    """Yield messages about the rules of its forge that keep the change from landing. `mine`: labels and contexts that
    the pipeline sets itself; a rule that lacks only these is no obstacle."""
    details, change = change_state.details, change_state.change
    if details is None:
        return
    if details.draft:
        yield f"{change.key} is a draft"
    for rule in details.rules or ():
        # Headgate votes only when the change lands, so waiting for its own vote would never end.
        only_ours = bool(rule.missing) and set(rule.missing) <= set(mine)
        if rule.met is False and not rule.bypassed and not only_ours:
            yield f"{change.key} {rule.text}"


def demands(world: World, connection: str, exempt: Collection[str] = ()) -> Demands:
    """Return the pipeline's demands on changes of a forge. `exempt`: keys of changes that need not meet its
    requirements."""
    pipeline, mine = world.pipeline, tuple(sorted(ours(world, connection)))
    require, reject = pipeline.require.get(connection, {}), pipeline.reject.get(connection, {})
    return Demands(pipeline.drivers.get(connection, "git"), require, reject, mine, tuple(exempt))


def amiss(wanted: Demands, change_state: ChangeState, tenant: str) -> str:
    """Return a message about what keeps a change from landing, according to the state that its forge has just returned;
    empty if nothing does."""
    dialect = DIALECTS.get(wanted.driver, DIALECTS["git"])
    seen = TermSubject(change_state, tenant, ours=frozenset(wanted.ours))
    if change_state.change.key not in wanted.exempt:
        found = chain(missing(dialect.require, wanted.require, seen), hindering(dialect.require, wanted.reject, seen))
        if why := next(found, ""):
            return why
    return next(withheld(change_state, wanted.ours), "")


def of_refs(change: Change, world: World) -> str:
    """Return why an updated ref does not meet the requirements; empty if it does."""
    return unmet(world, ChangeState(change), entering=True)


def word_of(result: str) -> str:
    """Return the word that a result sets for a change; empty if it sets none, so that an earlier word remains valid."""
    return _WORDS.get(result, "")


def concerns(pipeline: Pipeline, name: str) -> bool:
    """Return whether the pipeline's requirements depend on results of the pipeline `name`."""
    requirements = (*pipeline.require.values(), *pipeline.reject.values())
    return any(name in required_results(one.get("check")) for one in requirements)


def vouching(change_state: ChangeState, word: PipelineCheck) -> ChangeState:
    """Return the change state with the current word of a pipeline. Drop its earlier word and all words on other
    patchsets."""
    others = (one for one in _current(change_state) if (one.tenant, one.pipeline) != (word.tenant, word.pipeline))
    return replace(change_state, checks=(*others, word))


def _current(change_state: ChangeState) -> Iterator[PipelineCheck]:
    return (one for one in change_state.checks if one.commit == change_state.change.commit)


def triggers(pipeline: Pipeline, event: TriggerEvent, known: ChangeState | None = None) -> bool:
    """Return whether the event triggers the pipeline. `known` is the state of its change, on which triggers may have
    conditions; with None, these are not checked yet."""
    return any(_matches(f, pipeline, event, known) for f in pipeline.triggers)


def _matches(filter: TriggerFilter, pipeline: Pipeline, event: TriggerEvent, known: ChangeState | None) -> bool:
    if event.kind.ripples:
        named = as_list(filter.more.get("pipeline")) if event.kind is EventKind.PARENT_ENQUEUED else []
        return filter.connection == ZUUL and event.kind in filter.events and (not named or event.pipeline in named)
    if event.kind.is_of_image:
        return filter.connection == ZUUL and event.kind in filter.events
    return filter.connection == event.change.connection and happened(filter, pipeline, event, known)
