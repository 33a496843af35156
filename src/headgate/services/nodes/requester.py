"""An executor's side: requests the nodes of a build, and has them for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.base.tasks import unless
from headgate.config.machines import FlatProvider
from headgate.config.model import Nodeset
from headgate.gate.imagework import body_of
from headgate.gate.work import BuildSpec
from headgate.inventory.leases import PRECEDENCE
from headgate.map.inventory.nodes import NodeAnswer, NodeRequest
from headgate.recipes.codec import encode
from headgate.recipes.patience import answered
from headgate.services.context import Context
from headgate.services.nodes.machines.survey import providers
from headgate.services.tenancy import Tenants
from headgate.store.store import Session
from headgate.store.types import Delete, Put, StoreError

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while the build only waits."""


class NoNodes(Exception):
    """Report that none of the nodesets is available; the text says why."""


class NodeRequester:
    """Request nodes for builds. `tenants` define what labels mean; a build of a tenant without labels and providers
    uses the runner's own machine."""

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
        """Yield the build with its hosts; as it is if it needs none from here; None if it was cancelled before it had
        them.  Raise NoNodes."""
        tenant = self._tenants().get(spec.tenant)
        made = providers(self._context.map, self._context.mirror).get(spec.tenant, [])
        if tenant is None or not spec.job.nodeset.nodes or not (tenant.labels or self._means(made, spec)):
            yield spec
            return
        wrong = []
        for nodeset in (spec.job.nodeset, *spec.job.nodeset_alternatives):
            # Each alternative is a request of its own: machines of two nodesets are never mixed.
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
        """Return whether a build means machines that are made: also where nobody makes them any more, so that it is
        not run beside the executor instead."""
        wanted = {node.label for one in (spec.job.nodeset, *spec.job.nodeset_alternatives) for node in one.nodes}
        known = any(one.label(label) is not None for one in made for label in wanted)
        return known or (bool(made) and not wanted <= set(self._own))

    @asynccontextmanager
    async def _requested(
        self, session: Session, spec: BuildSpec, nodeset: Nodeset, precedence: int
    ) -> AsyncIterator[NodeRequest]:
        """Yield a request for nodes: while it exists, the machines that are claimed for it are ours; it ends with the
        session."""
        occasion, of_image = spec.change.occasion, body_of(spec.change)
        nodes = tuple((name, node.label) for node in nodeset.nodes for name in node.name)
        request = NodeRequest(
            id=fresh(),
            tenant=spec.tenant,
            project=spec.change.project,
            build=spec.build,
            job=spec.job.name,
            nodes=nodes,
            executor=self._context.hostname,
            zone=self._zone,
            precedence=precedence,
            asked_ms=self._context.now_ms(),
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
            # The answer comes as a single write, so nothing but this path is watched.
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
