"""Create machines for requests, and delete unneeded ones.

All state is in the store and is written before a cloud is called, so that a successor can continue.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from headgate.base.tasks import run_until
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import ARRIVING, ENDING, FREE, MadeNode, NodeAnswer, NodeRequest
from headgate.ports.clouds import SYSTEM_TAG, TERM_TAG, Amounts, MachineSpec
from headgate.services.configuration import Tenants
from headgate.services.context import Context
from headgate.services.nodes.accounts import CloudAccount, Errands, Hunting, Permitted, region_of
from headgate.services.nodes.images.choice import fitted, unmade, upload_checks
from headgate.services.nodes.images.keeper import ImageKeeper
from headgate.services.nodes.ledger import MachineLedger, explained, partly
from headgate.services.nodes.machines.choice import Choosing, Later, Make, Never, NodePlan
from headgate.services.nodes.machines.demand import NodeSurvey
from headgate.services.nodes.machines.fate import Fate, given_back
from headgate.services.nodes.machines.hunt import Hunt
from headgate.services.nodes.machines.life import STUCK_S, Backoff, Life, Scan, Seal
from headgate.services.nodes.machines.pools import ReadyPools
from headgate.services.nodes.machines.records import SeenMachines, host_nodes, is_made, new_node, open_slots, seen
from headgate.services.nodes.status import NodeState, WaitingRequest, node_state
from headgate.store.types import At, Op, TooLarge

log = logging.getLogger("headgate.launcher")

REGISTERED_MAX = 20
"""Limit on the machines that are recorded in one commit."""
LOOKED_AT_A_SECOND = 2_500
"""Machines checked per second: the more machines there are, the less often all of them are checked."""
LOOK_S = 30.0
"""Longest interval between two passes."""


class MachineMaker:
    """Create machines. Call `run` under the launcher's lock."""

    def __init__(
        self,
        context: Context,
        tenants: Tenants,
        accounts: Mapping[str, CloudAccount],
        scan: Scan,
        seal: Seal,
        guard: At,
        images: ImageKeeper | None = None,
    ) -> None:
        """Set up the maker of machines; `images` uploads images that jobs build, None: nothing does."""
        self._context, self._tenants, self._accounts = context, tenants, accounts
        self._ledger, self._backoff, self._hunting = MachineLedger(context, guard), Backoff(), Hunting(accounts)
        self._hunt = Hunt(self._ledger, accounts, self._hunting)
        self._life = Life(self._ledger, accounts, self._backoff, scan, seal, self._provider)
        self._errands, self._images, self._permitted = Errands(), images, Permitted(accounts)
        self._seen, self._configured = SeenMachines({}, {}, {}, {}, {}), dict[str, FlatProvider]()
        self._fate = Fate(self._seen, NodeState(frozenset(), (), {}, ()), 0)

    async def run(self) -> None:
        """Work until cancelled. Raise GuardLost or StoreError."""
        await self._hunt.begin()
        if self._images is None:
            await self._made()
        else:
            await run_until(asyncio.Event(), self._made(), self._images.run(self._hunt.system))

    async def _made(self) -> None:
        map = self._context.map
        prefixes = (map.nodes.path, map.hold_requests.path, map.image_uploads.path)
        try:
            with self._context.mirror.part(*prefixes) as part:
                while True:
                    moves = part.moves
                    await self._look()
                    ends_s = [*self._backoff.ends_s(), *(one.back_s for one in self._accounts.values())]
                    await self._errands.wait(asyncio.ensure_future(part.moved(moves)), ends_s, LOOK_S)
                    # The pause grows with the number of machines, so that passes take a limited share of the time.
                    await asyncio.sleep(len(self._seen.nodes) / LOOKED_AT_A_SECOND)
        finally:
            await self._errands.end()

    def _provider(self, name: str) -> FlatProvider | None:
        return self._seen.every.get(name)

    # --- one pass

    def _now(self) -> SeenMachines:
        """Return the present machines and requests, with the listed machines that may be used."""
        now = seen(self._context.map, self._context.mirror)
        self._configured = {one.name: one for several in now.providers.values() for one in several}
        return dataclasses.replace(now, providers=self._permitted.of(now.providers))

    async def _look(self) -> None:
        self._errands.ended()
        now = node_state(self._context.map, self._context.mirror, self._context.now_ms())
        self._seen = self._now()
        fate = Fate(self._seen, now, self._context.now_ms())
        for node in list(self._seen.nodes.values()):
            await self._follow(node, fate)
        places = self._context.map.nodes
        # Nothing else would delete the records of ended requests and of deleted machines.
        stale: list[Op] = [places.waits(id).record.delete() for id in self._seen.waits.keys() - now.requests]
        stale += [places.orders(id).record.delete() for id in self._seen.orders.keys() - self._seen.nodes.keys()]
        for op in stale:  # One at a time, because they are independent.
            await self._ledger.commit([], [op])
        await self._register()
        await self._open()
        self._seen = self._now()  # Machines may have been recorded above.
        self._fate = Fate(self._seen, now, self._context.now_ms())
        await self._serve(now)
        self._steps()
        await self._hunt.look(self._seen, self._errands)

    async def _follow(self, node: MadeNode, fate: Fate) -> None:
        """Update a machine's state: its request may be gone, or a person may want it held or deleted."""
        if node.main and node.state in ENDING:
            await self._ledger.change(node.id, lambda _: None)  # a slot has no resources in the cloud
            return
        wanted = fate.of(node)
        if wanted != node:
            await self._ledger.change(node.id, lambda one: wanted if one == node else one)
        order = self._seen.orders.get(node.id)
        if order is not None and fate.done(wanted, order):
            await self._ledger.commit([], [self._context.map.nodes.orders(node.id).record.delete()])

    async def _open(self) -> None:
        """Record the slots of machines that several builds use."""
        for id in [node.id for node in self._seen.nodes.values() if node.opened < node.slots]:
            while (found := self._ledger.node(id)) is not None and found[0].state not in ENDING:
                machine, slots = open_slots(found[0])
                if not slots or not await self._ledger.commit(
                    [found[1]], [self._put(one) for one in (machine, *slots)]
                ):
                    break

    async def _register(self) -> None:
        """Record the machines that providers list and that have no record yet."""
        tags, now_ms = {SYSTEM_TAG: self._hunt.system}, self._context.now_ms()
        every = (one for several in self._seen.providers.values() for one in several if one.is_static)
        found = {id: node for one in every for id, node in host_nodes(one).items()}
        fresh_ones = [
            replace(node, tags=tags, requested_ms=now_ms, since_ms=now_ms)
            for id, node in found.items()
            if id not in self._seen.nodes
        ]
        for start in range(0, len(fresh_ones), REGISTERED_MAX):
            few = fresh_ones[start : start + REGISTERED_MAX]
            checks = [At(self._context.map.nodes.made(node.id).record.path, None) for node in few]
            await self._ledger.commit(checks, [self._put(node) for node in few])

    # --- requests

    async def _serve(self, now: NodeState) -> None:
        """Serve the requests in order; a request that has all of its machines is answered."""
        choosing = Choosing(self._site(now))
        for waiting in now.waiting:
            request = waiting.request
            tenant = self._tenants().get(request.tenant)
            known = self._seen.providers.get(request.tenant, [])
            if tenant is None or waiting.claimed or not is_made(request, tenant.labels, known):
                continue
            if mixed := sorted({label for _, label in request.nodes} & tenant.labels.keys()):
                await self._never(waiting, f"{', '.join(mixed)}: machines of the inventory and machines on demand "
                                           "cannot be in one nodeset")  # fmt: skip
                continue
            try:
                again = await self._serve_one(waiting, choosing)
            except TooLarge as error:
                again = False
                await self._never(
                    waiting, f"its {len(request.nodes)} machines cannot be recorded in one commit: {error}"
                )
            if again:
                return
        for node, after in list(choosing.returned()):
            await self._ledger.change(node.id, lambda one, node=node, after=after: after if one == node else one)  # type: ignore[misc]
        await self._keep_ready(choosing)

    async def _serve_one(self, waiting: WaitingRequest, choosing: Choosing) -> bool:
        """Serve one request; return whether another pass must start before others are served.  Raise TooLarge."""
        request = waiting.request
        own = {node.node: node for node in self._seen.nodes.values() if node.request == request.id}
        if len(own) == len(request.nodes):
            if all(node.state == "ready" for node in own.values()):
                await self._hand_over(waiting, own)
            else:
                await self._explain(waiting, Later("; ".join(map(self._progress, own.values()))))
            return False
        match choosing.serve(request, self._seen.waits.get(request.id)):
            case Never(why):
                await self._never(waiting, why)
            case NodePlan() as plan:
                slots_left = any(one.label.slots > len(one.nodes) for one in plan.make)
                return await self._give(waiting, plan) and slots_left  # the next pass sees the slots
            case Later() as later:
                await self._explain(waiting, later)
                for node in later.idle:
                    await self._outdate(node, "other requests wait for its room")
        return False

    def _progress(self, node: MadeNode) -> str:
        """Return a message about the progress of the machine; for a slot, that of its machine."""
        short, machine = node.provider.rpartition("/")[2], self._seen.nodes.get(node.main, node)
        state = node.state if node.state == "ready" else machine.state
        return f"{node.node} is {state} at {short}" + (f": {machine.why}" if machine.why else "")

    def _is_complete(self, request: NodeRequest) -> bool:
        """Return whether the request has as many machines as it wants, usable or not."""
        return sum(node.request == request.id for node in self._seen.nodes.values()) == len(request.nodes)

    def _site(self, now: NodeState) -> NodeSurvey:
        tenants = self._tenants()
        held = [one.claim for one in now.claims.values() if one.claim.state != "cleaning"]
        return NodeSurvey(
            providers=self._seen.providers,
            nodes=list(self._seen.nodes.values()),
            uses=self._uses,
            account=self._room,
            closed=self._closed,
            place=lambda node: (node.connection, region_of(node.settings["provider"])),
            place_of=lambda one: (one.connection, region_of(one.settings)),
            most_of_project=lambda name, project: tenants[name].most_nodes(project) if name in tenants else -1,
            limits_of_tenant=lambda name: tenants[name].resource_limits if name in tenants else {},
            tight=lambda one: self._backoff.is_tight(one.name),
            full=lambda one: self._backoff.is_full(one.name),
            # A static provider has no account whose limits would have to be read.
            unread=lambda one: not (one.is_static or self._hunting.place(one.connection, one.settings).is_read),
            line=[one.request.id for one in now.waiting if not self._is_complete(one.request)],
            order=now.order,
            now_ms=self._context.now_ms(),
            expired=self._fate.expired,
            claimed=Counter((claim.tenant, claim.project) for claim in held),
            fitted=lambda request, several: fitted(request, several, self._context.map, self._context.mirror),
        )

    def _uses(self, provider: FlatProvider, label: FlatLabel) -> Amounts | str | None:
        if provider.is_static:
            return self._permitted.why(self._configured.get(provider.name, provider), label) or {}
        found = self._hunting.uses(provider.name, label.digest)
        if found is None and provider.connection in self._accounts and not unmade(provider, label.name):
            wanted = MachineSpec("", label.label, label.image, label.flavor, provider.settings)
            learn = partial(self._hunting.learn, provider.connection, provider.name, label.digest, wanted)
            self._errands.begin(f"uses {provider.name} {label.digest}", provider.connection, learn)
        return found

    def _room(self, provider: FlatProvider) -> tuple[Amounts, Amounts]:
        place = self._hunting.place(provider.connection, provider.settings)
        return place.limits, place.others

    def _closed(self, provider: FlatProvider, label: str) -> str:
        account = self._accounts.get(provider.connection)
        if account is None:
            return f"the connection {provider.connection} is not in the launcher's settings"
        return account.away or unmade(provider, label) or self._backoff.why(provider.name, label)

    async def _give(self, waiting: WaitingRequest, plan: NodePlan) -> bool:
        """Take all machines of a plan, or none; return whether they were taken."""
        request, at = waiting.request, self._seen.at
        checks, ops = [waiting.at], list[Op]()
        # Every machine is checked, because its builds, people and its own steps write the same record.
        for node in plan.leave:
            checks.append(at[node.id])
            ops.append(self._put(given_back(node)))
        for node, name in plan.take:
            checks.append(at[node.id])
            ops.append(self._put(_given(node, request, name)))
        uploads = upload_checks([make.label for make in plan.make], self._context.map, self._context.mirror)
        if uploads is None:
            return False  # one of the images is being deleted, which the next pass sees
        checks += uploads
        for make in plan.make:
            ops += self._made_of(make, request.tenant, request)
        return await self._ledger.commit(checks, ops)

    def _put(self, node: MadeNode) -> Op:
        return self._context.map.nodes.made(node.id).record.put(node)

    def _made_of(self, make: Make, tenant: str, request: NodeRequest | None = None) -> list[Op]:
        """Return the records to write before a cloud is called for a machine; a machine with slots includes the
        request's slots."""
        tags = {SYSTEM_TAG: self._hunt.system, TERM_TAG: self._hunt.term}
        node = new_node(make.provider, make.label, make.uses, tags, tenant, request, self._context.now_ms())
        if not node.slots:
            return [self._put(_given(node, request, make.nodes[0]) if request is not None else node)]
        node, slots = open_slots(node, len(make.nodes))
        given = [_given(slot, request, name) for slot, name in zip(slots, make.nodes, strict=True) if request]
        return [self._put(node), *map(self._put, given)]

    async def _hand_over(self, waiting: WaitingRequest, own: Mapping[str, MadeNode]) -> None:
        request, nodes = waiting.request, self._context.map.nodes
        answer = NodeAnswer(
            request.id,
            hosts={name: _variables(node) for name, node in own.items() if node.host is not None},
            resources={name: node.resources for name, node in own.items() if node.resources},
            secrets={name: node.secrets for name, node in own.items() if node.secrets is not None},
        )
        ops: list[Op] = [nodes.answers(request.id).record.put(answer)]
        now_ms = self._context.now_ms()
        ops += [self._put(replace(node, state="in-use", since_ms=now_ms, why="")) for node in own.values()]
        # The same commit deletes the reason, so that no answered request appears to wait.
        if request.id in self._seen.waits:
            ops.append(nodes.waits(request.id).record.delete())
        await self._ledger.commit([waiting.at, *(self._seen.at[node.id] for node in own.values())], ops)

    async def _never(self, waiting: WaitingRequest, why: str) -> None:
        answer = self._context.map.nodes.answers(waiting.request.id).record
        await self._ledger.commit([waiting.at], [answer.put(NodeAnswer(waiting.request.id, error=why))])

    async def _explain(self, waiting: WaitingRequest, later: Later) -> None:
        """Record why the request waits, and where it waits for room, if that has changed."""
        id, now_ms = waiting.request.id, self._context.now_ms()
        place, known = self._context.map.nodes.waits(id).record, self._seen.waits.get(id)
        wait = explained(known, id, later.why, now_ms)
        if later.at:
            wait = replace(wait, at=later.at, room_ms=wait.room_ms or now_ms)
        wait = partly(wait, later.held, now_ms)
        if wait != known:
            entry = self._context.mirror.get(place.path)
            as_read = At(place.path, entry.version if entry is not None else None)
            await self._ledger.commit([waiting.at, as_read], [place.put(wait)])

    async def _outdate(self, node: MadeNode, why: str) -> None:
        def change(one: MadeNode) -> MadeNode:
            # Another request may have taken the machine since it was chosen.
            same = one.request == node.request and one.state in FREE
            return replace(given_back(one), state="outdated", why=why) if same else one

        await self._ledger.change(node.id, change)

    async def _keep_ready(self, choosing: Choosing) -> None:
        """Create the missing machines of those that are kept ready; delete machines that were unneeded for long."""
        # Serving the requests has changed machines, and only those that are still free count for the pools.
        self._seen = self._now()
        pools = ReadyPools(self._seen, self._fate, choosing)
        for tenant, made in pools.lacking():
            checks = upload_checks([made.label], self._context.map, self._context.mirror)
            if checks is not None:
                await self._ledger.commit(checks, self._made_of(made, tenant))
        for node in list(pools.idle(self._context.now_ms())):
            await self._outdate(node, "it was not needed for a long time")

    # --- lengthy work

    def _steps(self) -> None:
        """Start the next step of every machine that is due."""
        known = {_errand(node) for node in self._seen.nodes.values()}
        known |= {f"watch {node.id}" for node in self._seen.nodes.values() if node.fixed}
        self._errands.forget(lambda key: key.startswith(("node ", "watch ")) and key not in known)
        now_ms = self._context.now_ms()

        def place(one: MadeNode) -> tuple[int, int, str]:
            """Return the order of the step: deletions come first, because they make room; stuck deletions come last."""
            stuck = one.state in ENDING and now_ms - one.since_ms > 1000 * STUCK_S
            return (2 if stuck else one.state not in ENDING), one.requested_ms, one.id

        for node in sorted(self._seen.nodes.values(), key=place):
            if node.main and node.state != "building":
                continue  # calls to its cloud are made for its machine
            if node.state in (*ENDING, *ARRIVING, "requested", "building"):
                self._errands.begin(_errand(node), node.connection, partial(self._life.step, node.id))
            elif node.fixed and node.state == "ready" and not node.request:
                self._errands.begin(f"watch {node.id}", node.connection, partial(self._life.watch, node.id))


def _errand(node: MadeNode) -> str:
    """Return the name of the machine's next step; for static machines one for each state, because each may take
    long."""
    return f"node {node.id} {node.state} {node.since_ms}" if node.fixed else f"node {node.id}"


def _given(node: MadeNode, request: NodeRequest, name: str) -> MadeNode:
    return replace(
        node, request=request.id, node=name, build=request.build, tenant=request.tenant, project=request.project
    )


def _variables(node: MadeNode) -> dict[str, Any]:
    """Return the variables of a host, for its build."""
    known = {"label": node.label, "provider": node.provider, "external_id": node.external_id, "slot": node.slot}
    own = {"uuid": node.id, "reuse": node.fixed or bool(node.settings["label"].get("reuse"))}
    return {**(node.host or {}), "headgate_machine": node.id, "nodepool": {**node.about, **known}, "zuul_node": own}
