"""Describe the current requests, claims and answers, and the machines that a build could get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.config.operator.model import Tenant
from headgate.inventory.leases import level
from headgate.map.inventory.nodes import NodeAnswer, NodeClaim, NodeRequest
from headgate.map.places import Map
from headgate.map.tree import Address, Undecodable
from headgate.recipes.mirror import Mirror
from headgate.services.autohold import held_builds, hold_requests
from headgate.store.types import At, Entry

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PooledMachine:
    """Describe one machine, for viewers who may see only that it exists."""

    uuid: str
    name: str
    labels: tuple[str, ...]
    provider: str
    local: bool
    """Whether the machine is a slot of an executor's host."""
    state: str = "ready"
    """ready | in-use (leased by a person) | failed (out of use)"""
    why: str = ""


Pooled = Callable[[Tenant], Awaitable[Sequence[PooledMachine]]]
"""Returns the machines that labels of a tenant match."""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    claim: NodeClaim
    at: At


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """Describe a request without an answer."""

    request: NodeRequest
    at: At
    claims: tuple[HeldClaim, ...] = ()
    """Machines that are claimed for the request and not returned."""
    cleaning: bool = False
    """Whether a machine of an earlier attempt is still being cleaned."""

    @property
    def claimed(self) -> bool:
        return bool(self.claims)


@dataclass(frozen=True, slots=True)
class NodeState:
    requests: frozenset[str]
    waiting: tuple[WaitingRequest, ...]
    """Waiting requests, the most urgent first."""
    claims: dict[str, HeldClaim]
    """Machine -> its claim."""
    answers_left: tuple[Address[NodeAnswer], ...]
    """Answers to requests that no longer exist."""
    held: frozenset[str] = frozenset()
    """Ended requests whose machines are kept because their builds are held."""
    order: tuple[str, ...] = ()
    """All requests, answered or not, the most urgent first."""
    requested_ms: Mapping[str, int] = field(default_factory=dict)
    """Request -> time at which it was made."""


def node_state(map: Map, mirror: Mirror, now_ms: int) -> NodeState:
    """Return the current requests, claims and answers. Unreadable records are ignored; the map's check reports them."""
    requests = {}
    for entry in mirror.under(map.nodes.requests.path):
        request = _read(Address(entry.path, NodeRequest), entry)
        if request is not None:
            requests[request.id] = (entry, request)
    claims, of = {}, dict[str, list[HeldClaim]]()
    for entry in mirror.under(map.nodes.claims.path):
        claim = _read(Address(entry.path, NodeClaim), entry)
        if claim is not None:
            held = claims[claim.machine] = HeldClaim(claim, At(entry.path, entry.version))
            of.setdefault(claim.request, []).append(held)
    answers = {entry.path.rpartition("/")[2]: entry for entry in mirror.under(map.nodes.answers.path)}
    waiting, order = [], []

    def place(one: tuple[Entry, NodeRequest]) -> tuple[int, int]:
        # Equally urgent requests stay in the order of their arrival in the store, because clocks of executors differ.
        return level(one[1].precedence, one[1].requested_ms, now_ms), one[0].born

    for entry, request in sorted(requests.values(), key=place):
        order.append(request.id)
        if request.id in answers:
            continue
        own = of.get(request.id, [])
        usable = tuple(held for held in own if held.claim.state != "cleaning")
        waiting.append(WaitingRequest(request, At(entry.path, entry.version), usable, len(usable) < len(own)))
    left = tuple(map.nodes.answers(id).record for id in answers if id not in requests)
    held_for = frozenset(one.request for one in held_builds(hold_requests(map, mirror)) if one.request)
    requested_ms = {id: request.requested_ms for id, (_, request) in requests.items()}
    return NodeState(frozenset(requests), tuple(waiting), claims, left, held_for, tuple(order), requested_ms)


def _read(address: Address[R], entry: Entry) -> R | None:
    try:
        return address.decode(entry.value)
    except Undecodable:
        return None
