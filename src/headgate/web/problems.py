"""Describe the problems of a tenant, and those that concern every tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from headgate.config.dynamic import NOT_IN_FORCE, TenantLayouts
from headgate.config.operator.model import Tenant
from headgate.gate.state.change import Parted, Strayed
from headgate.map.inventory.nodes import NodeAccount
from headgate.map.projects import layout_at
from headgate.map.records import RepositoryProblem, RepositoryProblems
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.services.nodes.machines.records import seen
from headgate.services.nodes.requester import IMAGE, executors
from headgate.services.quarantine import Quarantine
from headgate.web.process import StoreAvailability
from headgate.web.shapes import ProblemShape

SHOWN_MAX = 20
"""Limit on the quarantined entries and partly landed circles that are shown with the queues."""

NAMED_MAX = 5
"""Limit on the machines that the problem of an account names."""
UNLESS = {
    "scheduler": "events and results are not processed until one starts",
    "merger": "changes are not merged or landed, and configuration is not read, until one starts",
    "executor": "no builds run until one starts",
}
"""Kind of component -> the work that stops while none is running."""


def parted(alarms: Iterable[tuple[str, Iterable[Parted]]]) -> Iterator[ProblemShape]:
    """Yield each pipeline's circular dependencies of which only a part has landed."""
    found = [(pipeline, one) for pipeline, several in alarms for one in several]
    for pipeline, one in found[:SHOWN_MAX]:
        landed = ", ".join(f"{key} as {commit[:12]}" for key, commit in one.landed.items())
        text = (
            "ALARM: changes that depend on each other have landed only in part: "
            f"{landed}; {', '.join(one.missing)} has not landed. "
            "Get the rest approved again; or revert the landed part and dequeue one of these changes "
            "(headgate dequeue), which ends this alarm"
        )
        yield ProblemShape(f"{pipeline}: {', '.join(one.missing)}", text, one.since_ms)
    if len(found) > SHOWN_MAX:
        text = f"ALARM: {len(found) - SHOWN_MAX} more circular dependencies have landed only in part"
        yield ProblemShape("circles", text, found[SHOWN_MAX][1].since_ms)


def strayed(alarms: Iterable[tuple[str, Iterable[Strayed]]]) -> Iterator[ProblemShape]:
    """Yield each pipeline's changes whose landed tree differs from the tested one."""
    found = [(pipeline, one) for pipeline, several in alarms for one in several]
    for pipeline, one in found[:SHOWN_MAX]:
        text = (
            f"ALARM: the change has landed as {one.commit[:12] or 'another commit'}, but the tree of {one.branch} "
            "differs from the tested one: somebody pushed to the branch at that moment, or the forge merges "
            "differently. Check the branch; then dequeue the change (headgate dequeue), which ends this alarm"
        )
        yield ProblemShape(f"{pipeline}: {one.key}", text, one.since_ms)
    if len(found) > SHOWN_MAX:
        text = f"ALARM: {len(found) - SHOWN_MAX} more changes have landed with a tree that differs from the tested one"
        yield ProblemShape("changes", text, found[SHOWN_MAX][1].since_ms)


def problems_of(context: Context, tenant: Tenant, layouts: TenantLayouts) -> Iterator[ProblemShape]:
    """Yield the problems of a tenant's configuration, records and repositories."""
    yield from _held(context, tenant, layouts)
    yield from _aside(context, tenant.name)
    yield from _repositories(context, tenant)


def _held(context: Context, tenant: Tenant, layouts: TenantLayouts) -> Iterator[ProblemShape]:
    """Yield each branch whose latest configuration is not in force, with the reason."""
    layout, errors = layout_at(context.map.layout(tenant.name).record, context.mirror), layouts.refused
    for project, branches in layout.held.items() if layout is not None else ():
        for branch, held in branches.items():
            own = (e for e in errors if (e.project, e.branch) == (project, branch) and e.name != NOT_IN_FORCE)
            # An error of another project may keep this branch out of force, too.
            why = next(own, None) or next((e for e in errors if e.name != NOT_IN_FORCE), None)
            text = f"the configuration of {held.commit[:12]} has errors; the previous one stays in force"
            message = f"{text}: {why.path}:{why.line}: {why.text}" if why is not None else text
            yield ProblemShape(f"{project} {branch}", message, held.since_ms)


def _aside(context: Context, tenant: str) -> Iterator[ProblemShape]:
    """Yield the quarantined entries of the tenant, and those of no particular tenant."""
    found = [one for one in Quarantine(context).all().values() if one.tenant in ("", tenant)]
    for one in found[:SHOWN_MAX]:
        yield ProblemShape(one.what, f"in quarantine after an error: {one.error}", one.since_ms)
    if len(found) > SHOWN_MAX:
        yield ProblemShape("the quarantine", f"{len(found) - SHOWN_MAX} more", found[SHOWN_MAX].since_ms)


def _repositories(context: Context, tenant: Tenant) -> Iterator[ProblemShape]:
    """Yield the problem of each of the tenant's repositories, as its connection or else a merger reports it; then the
    problems of connections whose messages or objects trigger its pipelines."""
    mergers = _of_mergers(context)
    for connection in sorted({project.connection for project in tenant.projects}):
        known = {**mergers, **_of_connection(context, connection)}
        for project in tenant.projects:
            if project.connection == connection and (problem := known.get(project.project)) is not None:
                yield ProblemShape(project.name, problem.text, problem.since_ms)
    allowed = tenant.connections if tenant.allowed_triggers is None else tenant.allowed_triggers
    for connection in sorted(name for name in allowed if tenant.driver(name) in ("queue", "inventory")):
        for problem in _of_connection(context, connection).values():
            yield ProblemShape(f"the connection {connection}", problem.text, problem.since_ms)


def _of_connection(context: Context, connection: str) -> Mapping[str, RepositoryProblem]:
    entry = context.mirror.get(context.map.cache.connection(connection).problems.path)
    found = readable(entry, RepositoryProblems) if entry is not None else None
    return found.projects if found is not None else {}


def _of_mergers(context: Context) -> dict[str, RepositoryProblem]:
    found = context.members(context.map.components.merger.path).values()
    return {p: t for r in found for p, t in r.data.problems.items()}


class AccountShape(msgspec.Struct, frozen=True, kw_only=True):
    """Name an account in which machines were made and may still exist. Headgate only."""

    id: str
    connection: str
    region: str
    nodes: tuple[str, ...]
    """Recorded machines in this account."""
    strange: tuple[str, ...]
    """Some machines that have our tag, but that another installation made."""
    lacking: bool
    """Whether the launcher's settings have no such connection."""
    since: int | None
    """When the problem began, in milliseconds since the epoch."""


def node_accounts(context: Context) -> list[AccountShape]:
    """Return the accounts, ordered by connection and region."""
    now = seen(context.map, context.mirror)
    found = []
    for id, one in now.accounts.items():
        # A static machine belongs to no account, and a slot is part of a machine that is already counted.
        made = (node for node in now.nodes.values() if not (node.fixed or node.main))
        nodes = [node.id for node in made if _is_at(one, node.connection, node.settings)]
        found.append(AccountShape(
            id=id, connection=one.connection, region=one.region, nodes=tuple(sorted(nodes)), strange=one.strange,
            lacking=bool(one.lacking_ms) and not one.given_up,
            since=one.lacking_ms or one.strange_ms or None,
        ))  # fmt: skip
    return sorted(found, key=lambda one: (one.connection, one.region))


def _is_at(account: NodeAccount, connection: str, stored: dict[str, dict[str, object]]) -> bool:
    return (connection, str(stored.get("provider", {}).get("region", ""))) == (account.connection, account.region)


def account_problems(context: Context) -> Iterator[ProblemShape]:
    """Yield the problems of accounts, which concern every tenant."""
    # `node_accounts` reads every machine, so skip it in an installation that has made none.
    if not context.mirror.names(context.map.nodes.accounts.path):
        return
    for one in node_accounts(context):
        where = f"the connection {one.connection}" + (f", region {one.region}" if one.region else "")
        if one.lacking:
            several = f"{len(one.nodes)} machines" if one.nodes else "machines"
            text = (
                f"the launcher's settings no longer have this connection; {several} were made there, and Headgate "
                "cannot delete them: restore the connection, or delete them by hand and run "
                f"`headgate node forget {one.id}`"
            )
            yield ProblemShape(where, text, one.since or 0)
        if one.strange:
            text = (
                f"{', '.join(one.strange[:NAMED_MAX])} there have the tag of this installation but were made by "
                "another one: one of the two stores is a copy of the other; Headgate leaves these machines alone"
            )
            yield ProblemShape(where, text, one.since or 0)


@dataclass(slots=True)
class SystemProblems:
    """Collect the problems that concern every tenant."""

    context: Context
    refused: Callable[[], RepositoryProblem | None] = lambda: None
    """Return why the latest tenant file was refused; None if it was not."""
    availability: StoreAvailability | None = None
    """Whether the store can be reached; None: that is not known."""
    _missed: dict[str, int] = field(default_factory=dict)
    """Kind of component without a running member -> when it was first missed, in milliseconds since the epoch."""

    def all(self) -> tuple[ProblemShape, ...]:
        """Return the problems of the store, of missing components and of accounts, and a refused tenant file."""
        found = self.away() or (*self._absences(), *account_problems(self.context))
        if (refused := self.refused()) is None:
            return found
        text = f"the latest tenant file was refused, and the previous one stays in force: {refused.text}"
        return (*found, ProblemShape("the tenant file", text, refused.since_ms))

    def away(self) -> tuple[ProblemShape, ...]:
        """Return the problem of an unreachable store; empty: the store can be reached."""
        availability = self.availability
        if availability is None or availability.away_since_ms is None:
            return ()
        text = (
            "it is unreachable, so events and results are not processed, and the status shown is the last known one: "
            f"{availability.away_why}"
        )
        return (ProblemShape("the store", text, availability.away_since_ms),)

    def _absences(self) -> tuple[ProblemShape, ...]:
        """Return a problem for each kind of component of which none is running."""
        context, absent = self.context, dict[str, str]()
        for kind, unless in UNLESS.items():
            found = context.members(getattr(context.map.components, kind).path).values()
            if not any(record.state == "running" for record in found):
                absent[kind] = unless
        zones = {record.data.zone for record in executors(context) if record.state == "running"}
        for zone in context.zone_names():
            # A zone without waiting builds needs no executor.
            if zone not in zones and context.zone(zone).open(context.mirror):
                absent[f"executor of zone {zone}"] = "builds for its machines wait until one starts"
        if not any(record.data.containers for record in executors(context) if record.state == "running"):
            wanted = (one.request.meta.get(IMAGE) for queue in context.zones() for one in queue.open(context.mirror))
            if image := next(filter(None, wanted), None):
                why = f"builds with an image, such as {image}, wait until one starts"
                absent["executor that runs containers"] = why
        # A kind that is back is removed here, so that its next absence counts from its own beginning.
        self._missed = {kind: self._missed.get(kind, context.now_ms()) for kind in absent}
        return tuple(ProblemShape(f"no {kind} is running", absent[kind], at) for kind, at in self._missed.items())
