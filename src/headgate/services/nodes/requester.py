"""Choose the executors that may run a job, and request the nodes of a build while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

from msgspec.structs import replace

from headgate.base.errors import HeadgateError
from headgate.base.ids import fresh
from headgate.base.tasks import unless
from headgate.config.machines import FlatProvider
from headgate.config.model import FrozenJob, Nodeset
from headgate.gate.builds.imagework import body_of
from headgate.gate.state.works import BuildSpec
from headgate.inventory.leases import PRECEDENCE
from headgate.map.inventory.nodes import NodeAnswer, NodeRequest
from headgate.map.records import ComponentFacts, ComponentRecord, ZoneLabels
from headgate.recipes.codec import encode, readable
from headgate.recipes.patience import answered
from headgate.recipes.requestforms import Open
from headgate.services.configuration import Tenants
from headgate.services.context import Context
from headgate.services.nodes.machines.demand import zone_of_label
from headgate.services.nodes.machines.records import providers
from headgate.store.store import Session
from headgate.store.types import Delete, Put, StoreError

IMAGE = "image"
"""Key, in the description of a build request, of the image that the job names for its programs."""
Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while the build only waits."""


def can_run(record: ComponentRecord, found: Open) -> bool:
    """Return whether an executor has everything that a build needs besides machines; a cancelled build needs
    nothing."""
    return record.data.containers or IMAGE not in found.request.meta or found.request.wanted == "cancel"


def executors(context: Context) -> list[ComponentRecord]:
    return list(context.members(context.map.components.executor.path).values())


def zone_of(job: FrozenJob, context: Context, tenant: str) -> str:
    """Return the zone whose executors run the job. It is empty if no executor of a zone has or had the labels, or if an
    executor without a zone also has them. Labels of providers determine the zone themselves.
    """
    wanted = {node.label for node in job.nodeset.nodes}
    if not wanted:
        return ""
    zones = _zones_of(wanted, providers(context.map, context.mirror).get(tenant, []))
    if zones is not None:
        return _best(zones, context)
    able = [record.data for record in executors(context) if wanted <= set(record.data.labels)]
    if any(data.unzoned for data in able):
        return ""
    if able:
        # The smallest name, so that every process chooses the same zone.
        return min(data.zone for data in able)
    # No running executor has the labels; builds then wait for the executors of a zone that had them.
    return min((zone for zone, labels in _remembered(context) if wanted <= labels), default="")


def _zones_of(wanted: Collection[str], known: Sequence[FlatProvider]) -> set[str] | None:
    """Return the zones from which all of the labels are reached; None if no provider has them."""
    zones = [{zone_of_label(one, label) for one in known if one.label(label) is not None} for label in wanted]
    if not any(zones):
        return None
    every = {zone for of in zones for zone in of} | {""}
    # If no zone reaches all labels, any one is chosen: the launcher then refuses with the reason.
    return {zone for zone in every if all(not of or of & {"", zone} for of in zones)} or every - {""}


def _best(zones: Collection[str], context: Context) -> str:
    """Return a zone with running executors, if there is one."""
    present = {zone for data in (record.data for record in executors(context)) for zone in served_zones(data)}
    return min(zones, key=lambda zone: (zone not in present, zone != "", zone))


def served_zones(data: ComponentFacts) -> tuple[str, ...]:
    """Return the zones whose executors run builds; the empty name stands for no zone."""
    return (data.zone, "") if data.unzoned or not data.zone else (data.zone,)


def _remembered(context: Context) -> Iterator[tuple[str, set[str]]]:
    """Yield each zone with its labels, including zones without a running executor."""
    for zone in context.zone_names():
        entry = context.mirror.get(context.map.executor.zones(zone).labels.path)
        known = readable(entry, ZoneLabels) if entry is not None else None
        if known is not None:
            yield zone, set(known.labels)


class NoNodes(HeadgateError):
    """Report that none of the nodesets is available; the message says why."""


class NodeRequester:
    """Request nodes for builds. `tenants` define the labels; a build of a tenant without labels and providers uses the
    runner's own machine."""

    def __init__(self, context: Context, tenants: Tenants, *, zone: str = "", own: Collection[str] = ()) -> None:
        """Request on behalf of an executor of `zone`; `own` are labels of machines that the runner has."""
        self._context, self._tenants, self._zone, self._own = context, tenants, zone, own

    def labels(self) -> set[str]:
        """Return the labels of the machines in our zone's partition."""
        every = [tenant.labels for tenant in self._tenants().values()]
        return {name for labels in every for name, one in labels.items() if self._zone and one.partition == self._zone}

    @asynccontextmanager
    async def take(
        self,
        session: Session,
        spec: BuildSpec,
        cancel: asyncio.Event,
        *,
        precedence: int = PRECEDENCE,
        waiting: Waiting = nullcontext,
    ) -> AsyncIterator[BuildSpec | None]:
        """Yield the build with its hosts, the unchanged build if it needs none, or None if it was cancelled before it
        had them.  Raise NoNodes."""
        tenant = self._tenants().get(spec.tenant)
        made = providers(self._context.map, self._context.mirror).get(spec.tenant, [])
        if tenant is None or not spec.job.nodeset.nodes or not (tenant.labels or self._means(made, spec)):
            yield spec
            return
        wrong = []
        for nodeset in (spec.job.nodeset, *spec.job.nodeset_alternatives):
            # Each alternative is a separate request, so that machines of two nodesets are never mixed.
            async with self._requested(session, spec, nodeset, precedence) as request:
                answer = await unless(cancel, self._answer(request, waiting))
                if answer is None:
                    yield None
                    return
                if not answer.error:
                    yield _ready(spec, nodeset, answer)
                    return
                wrong.append(answer.error)
        raise NoNodes("; ".join(wrong))

    def _means(self, made: Sequence[FlatProvider], spec: BuildSpec) -> bool:
        """Return whether a build needs machines that are created on demand. This includes labels that no provider has
        any longer, so that such a build does not run on the executor's machine instead."""
        wanted = {node.label for one in (spec.job.nodeset, *spec.job.nodeset_alternatives) for node in one.nodes}
        known = any(one.label(label) is not None for one in made for label in wanted)
        return known or (bool(made) and not wanted <= set(self._own))

    @asynccontextmanager
    async def _requested(
        self, session: Session, spec: BuildSpec, nodeset: Nodeset, precedence: int
    ) -> AsyncIterator[NodeRequest]:
        """Yield a request for nodes. While it exists, the machines that are claimed for it are reserved; it ends with
        the session."""
        occasion, of_image = spec.change.occasion, body_of(spec.change)
        nodes = tuple((name, node.label) for node in nodeset.nodes for name in node.name)
        request = NodeRequest(
            id=fresh(),
            tenant=spec.tenant,
            project=spec.change.project,
            build=spec.build,
            job=spec.job.name,
            nodes=nodes,
            executor=self._context.settings.hostname,
            zone=self._zone,
            precedence=precedence,
            requested_ms=self._context.now_ms(),
            machine=occasion.ordering_key if occasion is not None else "",
            upload=of_image.image_upload_uuid if of_image is not None else "",
            pipeline=spec.pipeline,
            buildset=spec.buildset,
            event=str(spec.zuul.get("event_id", "")),
        )
        path, store = self._context.map.nodes.requests(request.id).record.path, self._context.store
        # The request ends with the session, so machines of an executor that died are returned.
        put = Put(path, encode(request), session.lease)
        try:
            await answered(session, lambda: store.commit([], [put]))
            yield request
        finally:
            with suppress(StoreError):
                await answered(session, lambda: store.commit([], [Delete(path)]))

    async def _answer(self, request: NodeRequest, waiting: Waiting) -> NodeAnswer:
        address, mirror = self._context.map.nodes.answers(request.id).record, self._context.mirror
        async with waiting():
            # The answer is a single write, so only this path is watched.
            with mirror.part(address.path) as own:
                while (entry := mirror.get(address.path)) is None:
                    await own.moved(own.moves)
        return address.decode(entry.value)


def _ready(spec: BuildSpec, nodeset: Nodeset, answer: NodeAnswer) -> BuildSpec:
    """Return the build with its machines; nodes that are not hosts are only in `zuul.resources`."""
    # The usual case: every node is a host, and the nodeset stays as it was frozen.
    if not answer.resources and not answer.secrets and len(answer.hosts) == sum(len(one.name) for one in nodeset.nodes):
        return replace(spec, job=replace(spec.job, nodeset=nodeset), hosts=answer.hosts)
    nodes = (replace(one, name=tuple(name for name in one.name if name in answer.hosts)) for one in nodeset.nodes)
    groups = (replace(one, nodes=tuple(name for name in one.nodes if name in answer.hosts)) for one in nodeset.groups)
    hosts = replace(nodeset, nodes=tuple(one for one in nodes if one.name), groups=tuple(groups))
    return replace(
        spec,
        job=replace(spec.job, nodeset=hosts),
        hosts=answer.hosts,
        zuul={**spec.zuul, "resources": answer.resources},
        node_secrets=answer.secrets,
    )
