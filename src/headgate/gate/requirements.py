"""Check what a pipeline requires of a change and of an event, in the terms of its connection's driver."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from headgate.config.drivers import DIALECTS
from headgate.config.forges.keyterms import Dialect, TermSubject, hindering, missing, triggered
from headgate.config.model import Pipeline, TriggerFilter
from headgate.gate.change import Change, ChangeState, TriggerEvent
from headgate.gate.work import Demands
from headgate.gate.world import World

_NOTHING: dict[str, object] = {}


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
    # A key that the configuration does not have is an empty list here, which is no condition.
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
    return frozenset({f"{world.tenant}/{pipeline.name}"}).union(*map(sets, hows))


def unmet(world: World, change_state: ChangeState, *, entering: bool = False) -> str:
    """Return the first of the pipeline's requirements that keeps a change out, for people; empty if none does.
    `entering`: see `lacking`."""
    return next(lacking(world, change_state, entering=entering), "")


def lacking(world: World, change_state: ChangeState, *, entering: bool = False) -> Iterator[str]:
    """Yield the pipeline's requirements that keep a change out, for people. `entering`: the change is about to come in;
    otherwise it is in, and what only counts when it comes in is not checked."""
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
    """Return the first rule of the forge itself that keeps the change from being merged, for people; empty if there is
    none, or if only the pipeline's own results are missing."""
    return next(rulings(world, change_state), "")


def rulings(world: World, change_state: ChangeState) -> Iterator[str]:
    """Yield the rules of the forge itself that keep the change from being merged, for people. What the forge has not
    decided yet is no obstacle here."""
    details, change = change_state.details, change_state.change
    if details is None or not world.dependent or change.connection not in world.pipeline.lands:
        return
    if details.mergeable is False and not details.draft:
        yield f"{change.key} conflicts with {change.branch}"
    yield from withheld(change_state, ours(world, change.connection))


def withheld(change_state: ChangeState, mine: Collection[str]) -> Iterator[str]:
    """Yield the rules of its forge that keep the change from landing, for people. `mine`: labels and contexts that the
    asking pipeline sets itself; a rule that lacks only these is no obstacle."""
    details, change = change_state.details, change_state.change
    if details is None:
        return
    if details.draft:
        yield f"{change.key} is a draft"
    for rule in details.rules or ():
        # Our own vote is given only when the change lands; waiting for it would never end.
        only_ours = bool(rule.missing) and set(rule.missing) <= set(mine)
        if rule.met is False and not rule.bypassed and not only_ours:
            yield f"{change.key} {rule.text}"


def demands(world: World, connection: str, exempt: Collection[str] = ()) -> Demands:
    """Return what the pipeline demands of changes of a forge. `exempt`: keys of changes that need not meet its
    requirements."""
    pipeline, mine = world.pipeline, tuple(sorted(ours(world, connection)))
    require, reject = pipeline.require.get(connection, {}), pipeline.reject.get(connection, {})
    return Demands(pipeline.drivers.get(connection, "git"), require, reject, mine, tuple(exempt))


def amiss(wanted: Demands, change_state: ChangeState, tenant: str) -> str:
    """Return what keeps a change from landing, according to the state that its forge has just given, for people; empty
    if nothing does."""
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
