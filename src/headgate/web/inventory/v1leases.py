"""Implement headgate.inventory.v1: leases, quotas, health."""

from __future__ import annotations

from contextlib import suppress

from headgate.inventory import leases, names
from headgate.inventory.model import Caller
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.services.inventory.errors import NotFound
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.inventory.pool import HealthMonitor
from headgate.services.inventory.quotas import Quotas
from headgate.web.inventory.identity import CallerSessions, InventoryCall
from headgate.web.inventory.v1 import session_info

STATES = {
    leases.WAITING: pb.Lease.WAITING,
    leases.HELD: pb.Lease.HELD,
    leases.CLEANING: pb.Lease.CLEANING,
    leases.ENDED: pb.Lease.ENDED,
}


class LeaseRoutes:
    """Serve the calls about leases, quotas and health."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory
        self._leasing, self._quotas, self._healths = (
            ObjectLeasing(inventory),
            Quotas(inventory),
            HealthMonitor(inventory),
        )

    async def AskLease(self, call: InventoryCall, request: pb.AskLeaseRequest) -> pb.Lease:
        caller = await self._caller(call, request.session)
        wanted = leases.ObjectLease(
            # The server determines these members; a request cannot choose them.
            id="", user="", project="", partition="", requested_ms=0,
            search=request.search,
            duration_s=request.duration_s,
            amounts=dict(sorted(request.amounts.items())),
            precedence=request.precedence or leases.PRECEDENCE,
            note=request.note,
        )  # fmt: skip
        return _lease(await self._leasing.ask(caller, wanted, wait_s=request.wait_s))

    async def GetLease(self, call: InventoryCall, request: pb.LeaseRequest) -> pb.Lease:
        caller = await self._caller(call, request.session)
        return _lease(*await self._leasing.get(caller, request.id))

    async def ListLeases(self, call: InventoryCall, request: pb.ListLeasesRequest) -> pb.ListLeasesResponse:
        caller = await self._caller(call, request.session)
        return pb.ListLeasesResponse(leases=[_lease(*one) for one in await self._leasing.listed(caller)])

    async def ExtendLease(self, call: InventoryCall, request: pb.ExtendLeaseRequest) -> pb.Lease:
        caller = await self._caller(call, request.session)
        return _lease(await self._leasing.extend(caller, request.id, request.duration_s))

    async def EndLease(self, call: InventoryCall, request: pb.LeaseRequest) -> pb.Lease:
        caller = await self._caller(call, request.session)
        return _lease(await self._leasing.end(caller, request.id))

    async def SetQuota(self, call: InventoryCall, request: pb.SetQuotaRequest) -> pb.Quota:
        caller = await self._caller(call, request.session)
        given = request.quota
        return _quota(await self._quotas.set(caller, leases.Quota(
            given.name, caller.partition, given.project, given.user, given.search, given.property, given.most,
            given.hours, given.window_hours,
        )))  # fmt: skip

    async def ListQuotas(self, call: InventoryCall, request: pb.ListQuotasRequest) -> pb.ListQuotasResponse:
        caller = await self._caller(call, request.session)
        return pb.ListQuotasResponse(quotas=[_quota(one) for one in await self._quotas.listed(caller)])

    async def DeleteQuota(self, call: InventoryCall, request: pb.DeleteQuotaRequest) -> pb.Empty:
        caller = await self._caller(call, request.session)
        await self._quotas.delete(caller, request.name)
        return pb.Empty()

    async def ReportHealth(self, call: InventoryCall, request: pb.ReportHealthRequest) -> pb.Health:
        caller = await self._caller(call, request.session)
        uuid = names.uuid(request.uuid)
        await self._healths.report(caller, uuid, request.why)
        return await self._health(caller, uuid)

    async def GetHealth(self, call: InventoryCall, request: pb.GetHealthRequest) -> pb.Health:
        return await self._health(await self._caller(call, request.session), names.uuid(request.uuid))

    async def ListHealth(self, call: InventoryCall, request: pb.ListHealthRequest) -> pb.ListHealthResponse:
        caller = await self._caller(call, request.session)
        found = []
        for uuid, _ in await self._healths.unwell(caller):
            with suppress(NotFound):  # deleted in the meantime
                found.append(await self._health(caller, uuid))
        return pb.ListHealthResponse(health=found)

    async def _health(self, caller: Caller, uuid: str) -> pb.Health:
        # Get the object first: that raises NotFound for one that the caller may not see.
        object, _ = await self._inventory.get(caller, uuid)
        health, probed = await self._healths.of(caller, uuid)
        since_ms = health.since_ms if health.aside else probed.since_ms if probed else 0
        state = pb.Health.HEALTHY if probed else pb.Health.UNKNOWN
        return pb.Health(
            uuid=uuid,
            name=object.name,
            seen_ms=health.seen_ms,
            failures=health.failures,
            missed=health.missed,
            why=health.reason,
            failed_ms=health.failed_ms,
            aside=health.aside,
            state=pb.Health.UNHEALTHY if health.aside else state,
            since_ms=since_ms,
        )

    async def _caller(self, call: InventoryCall, session: pb.Session) -> Caller:
        return await self._sessions.caller(call, session_info(session))


def _lease(one: leases.ObjectLease, ahead: int = 0) -> pb.Lease:
    """Convert a lease. The properties of its machine are left out, as the caller may not be allowed to read them."""
    return pb.Lease(
        id=one.id,
        user=one.user,
        project=one.project,
        partition=one.partition,
        search=one.search,
        amounts=one.amounts,
        duration_s=one.duration_s,
        precedence=one.precedence,
        note=one.note,
        state=STATES[one.state],
        object=one.object,
        name=one.name,
        # The former name of the next member, for clients that still read it.
        asked_ms=one.requested_ms,
        requested_ms=one.requested_ms,
        begun_ms=one.begun_ms,
        until_ms=one.until_ms,
        ended_ms=one.ended_ms,
        why=one.why,
        ahead=ahead,
    )


def _quota(one: leases.Quota) -> pb.Quota:
    return pb.Quota(
        name=one.name,
        project=one.project,
        user=one.user,
        search=one.search,
        property=one.property,
        most=one.most,
        hours=one.hours,
        window_hours=one.window_hours,
    )
