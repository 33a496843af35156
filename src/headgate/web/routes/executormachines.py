"""Show to all tenants the machines that executors themselves have, from their file or as places in their sandbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headgate.base.ids import derived
from headgate.map.records import ComponentRecord, OwnMachine
from headgate.ports.history import time_text
from headgate.recipes.requestforms import Open
from headgate.rest import HTTPException
from headgate.services.nodes.zones import executors
from headgate.web.routes.machineshapes import NodeShape
from headgate.web.site import Site

LOCAL = "local"
"""Connection type of a build whose place is beside its executor."""


def executor_nodes(site: Site, tenant: str) -> list[NodeShape]:
    """Return the machines of executors that nobody has or builds of the tenant have, and of each executor that lists
    none its own machine."""
    own = {build.id: f"{build.job} of build {build.id}" for _, _, build in site.status.builds(tenant)}
    found, members = list[NodeShape](), site.context.members(site.context.map.components.executor.path)
    running = Counter(open.request.owner.component for open in _running(site)) if members else Counter[str]()
    for path, record in sorted(members.items()):
        if record.data.machines:
            found += _listed(site, record, own)
        else:
            found.append(_place(site, record, running[path]))
    return found


def _listed(site: Site, record: ComponentRecord, own: dict[str, str]) -> Iterator[NodeShape]:
    for one in record.data.machines:
        if not one.build or one.build in own:
            yield _shape(site, record, one, own.get(one.build))


def _shape(site: Site, record: ComponentRecord, one: OwnMachine, doing: str | None) -> NodeShape:
    state = "in-use" if one.build else "hold" if one.held else "ready"
    return NodeShape(
        id=one.name,
        uuid=_id(record, one.name),
        type=one.labels,
        label=one.labels[0] if one.labels else "",
        state=state,
        state_time=time_text(site.context.now_ms()) or "",
        comment=doing,
        connection_type="ssh",
        provider=f"[executor] nodes of {record.hostname}",
        username=one.user or None,
        interface_ip=one.address or None,
        is_locked=bool(one.build),
        lock_holder=record.hostname if one.build else None,
    )


def _running(site: Site) -> Iterator[Open]:
    """Yield the builds that executors run: looked through once, however many executors there are."""
    for zone in ("", *site.context.zone_names()):
        yield from (open for open in site.context.zone(zone).open(site.context.mirror) if open.locked)


def _place(site: Site, record: ComponentRecord, running: int) -> NodeShape:
    """Return the machine of an executor, on which it runs builds itself."""
    data = record.data
    accepts = record.state == "running" and data.accepting
    return NodeShape(
        id=record.hostname,
        uuid=_id(record, ""),
        type=data.labels,
        label=", ".join(data.labels) or LOCAL,
        state="in-use" if running else "ready",
        state_time=time_text(site.context.now_ms()) or "",
        comment=f"{running} of {data.places} builds",
        connection_type=LOCAL,
        provider=f"[executor] of {record.hostname}",
        is_locked=False,
        why=None if accepts else data.why or f"it is {record.state}",
    )


def _id(record: ComponentRecord, name: str) -> str:
    return derived("executor", record.hostname, name)


def not_steered(site: Site, uuid: str) -> HTTPException | None:
    """Return why a machine of an executor is not held or taken away, and what to do instead; None: it is none."""
    for record in executors(site.context):
        for name in ("", *(one.name for one in record.data.machines)):
            if _id(record, name) == uuid:
                text = f"{name} is a machine of the file [executor] nodes" if name else "it is the executor itself"
                do = "`headgate autohold` keeps what the next build of a job that fails had"
                return HTTPException(f"{text} of {record.hostname}, which alone steers it: {do}", status_code=409)
    return None
