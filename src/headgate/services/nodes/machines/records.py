"""Create the records of machines and of their slots, and read them from the store.

Only the machine itself, not its slots, counts for its account. It is created for the first request of a slot, and
deleted once its last slot is gone. A slot is gone once it was used, unless its label is reused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from headgate.base.ids import derived, fresh
from headgate.config.keys.nodes import LISTED_MAX
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import ENDING, FREE, MadeNode, NodeAccount, NodeOrder, NodeRequest, NodeWait
from headgate.map.places import Map
from headgate.map.tree import Address, Undecodable, unescape
from headgate.ports.clouds import NODE_TAG, Amounts
from headgate.recipes.mirror import Mirror
from headgate.services.nodes.images.choice import chosen
from headgate.store.types import At, Entry

_WORD = re.compile(r"\{(\w+)\}")
R = TypeVar("R")
SLOT_HOST = "slot-host"
"""State of a machine with slots once it is usable."""
OPENED_MAX = 20
"""Limit on the slots that are recorded in one commit."""


def new_node(
    provider: FlatProvider,
    label: FlatLabel,
    uses: Amounts,
    tags: Mapping[str, str],
    tenant: str,
    request: NodeRequest | None,
    now_ms: int,
) -> MadeNode:
    """Return the record of a machine to make; `tags` are the installation's."""
    id = fresh()
    words = {
        "tenant_name": tenant,
        "request_id": request.id if request else "",
        "pipeline_name": request.pipeline if request else "",
        "buildset_uuid": request.buildset if request else "",
        "zuul_event_id": request.event if request else "",
        "job_name": request.job if request else "",
        "job_uuid": request.build if request else "",
        "labels": ",".join(name for _, name in request.nodes) if request else label.name,
    }
    own = {
        # Unknown words become empty: the tags come from people, and a wrong one must not stop machines.
        name: _WORD.sub(lambda found: words.get(found[1], ""), str(text))
        for name, text in label.label.get("tags", {}).items()
    }
    definition = {"label": label.label, "image": label.image, "flavor": label.flavor, "provider": provider.settings}
    return MadeNode(
        id=id,
        provider=provider.name,
        connection=provider.connection,
        label=label.name,
        settings=definition,
        digest=label.digest,
        # The installation's tags take precedence, or a label could mark its machines as another installation's.
        tags={**own, **tags, NODE_TAG: id},
        uses=dict(uses),
        tenant=tenant,
        requested_ms=now_ms,
        since_ms=now_ms,
        slots=label.slots if label.slots > 1 else 0,
    )


def host_nodes(provider: FlatProvider) -> Mapping[str, MadeNode]:
    """Return, by id, the records of the machines that a provider lists, one for each slot; without the tags of the
    installation, and without times."""
    # The encoded form is hashable, so the cache finds a provider that is equal, though not the same object.
    return _host_nodes(msgspec.json.encode(provider, order="deterministic")) if provider.is_static else {}


@lru_cache(maxsize=256)
def _host_nodes(encoded: bytes) -> Mapping[str, MadeNode]:
    provider, found = msgspec.json.decode(encoded, type=FlatProvider), dict[str, MadeNode]()
    for host in provider.hosts:
        label = next((one for one in provider.labels if one.name == host.get("label")), None)
        if label is None:
            continue
        slots = int(host.get("slots") or label.slots)
        # These four settings identify the machine; other settings may change without making it another one.
        where = [str(host.get(key) or "") for key in ("name", "host", "connection-port", "username")]
        own = msgspec.json.encode(host, order="deterministic").decode()
        definition = {
            # Whatever the label says, a listed machine is used again: nothing could make a new one.
            "label": {**label.label, "reuse": True},
            "image": label.image,
            "flavor": label.flavor,
            "provider": {**provider.settings, "node": dict(host)},
        }
        for slot in range(slots):
            if len(found) >= LISTED_MAX:
                return found
            # The id is derived from the machine's address, so that each launcher finds its predecessor's record.
            id = derived(provider.name, *where, str(slot))
            found.setdefault(id, MadeNode(
                id=id, provider=provider.name, connection=provider.connection, label=label.name, state="registering",
                settings=definition, digest=derived(label.digest, own), fixed=True, slot=slot if slots > 1 else None,
            ))  # fmt: skip
    return found


def digests(several: Iterable[FlatProvider]) -> dict[str, set[str]]:
    """Return the digests of each listed machine, by id: tenants may list it with different settings."""
    found: dict[str, set[str]] = {}
    for provider in several:
        for id, node in host_nodes(provider).items():
            found.setdefault(id, set()).add(node.digest)
    return found


def names_of(node: MadeNode) -> tuple[str, ...]:
    """Return the labels that a listed machine serves."""
    own = node.settings["provider"].get("node", {}).get("aliases") or ()
    return node.label, *node.settings["label"].get("aliases", ()), *([own] if isinstance(own, str) else own)


def serving(nodes: Iterable[MadeNode], provider: str, name: str) -> list[MadeNode]:
    """Return the listed machines of a provider that serve a label."""
    return [one for one in nodes if one.fixed and one.provider == provider and name in names_of(one)]


def order(several: Sequence[MadeNode]) -> list[MadeNode]:
    """Return the machines; the one that has been unused for the longest time comes first."""
    return sorted(several, key=lambda one: (one.since_ms, one.id))


@dataclass(frozen=True, slots=True)
class SeenMachines:
    """Hold the records of machines in one pass. Unreadable records count as missing; `headgate map check` reports
    them."""

    providers: dict[str, list[FlatProvider]]
    """Tenant -> its providers, whose labels use the newest uploads of images that jobs build."""
    nodes: dict[str, MadeNode]
    at: dict[str, At]
    """Node -> check that its record is unchanged."""
    waits: dict[str, NodeWait]
    orders: dict[str, NodeOrder]
    accounts: dict[str, NodeAccount] = field(default_factory=dict)

    @property
    def listed(self) -> dict[str, set[str]]:
        """Return the static machines: id -> digests, one for each way in which they are listed."""
        return digests(one for several in self.providers.values() for one in several)

    def labels(self, provider: str, name: str) -> list[FlatLabel]:
        """Return a label of a provider as each tenant has it: sections of another name may be of other projects."""
        every = (one for several in self.providers.values() for one in several if one.name == provider)
        return [label for one in every for label in one.labels if label.name == name]

    @property
    def every(self) -> dict[str, FlatProvider]:
        """Return all providers, by name."""
        return {one.name: one for several in self.providers.values() for one in several}


def seen(map: Map, mirror: Mirror) -> SeenMachines:
    """Return the machines as they are now."""
    nodes, at = {}, {}
    for path, version, node in _read(mirror, map.nodes.made.path, MadeNode):
        nodes[node.id] = node
        at[node.id] = At(path, version)
    waits = {wait.request: wait for _, _, wait in _read(mirror, map.nodes.waits.path, NodeWait)}
    orders = {path.rpartition("/")[2]: one for path, _, one in _read(mirror, map.nodes.orders.path, NodeOrder)}
    accounts = {path.rpartition("/")[2]: one for path, _, one in _read(mirror, map.nodes.accounts.path, NodeAccount)}
    return SeenMachines(chosen(providers(map, mirror), map, mirror), nodes, at, waits, orders, accounts)


def providers(map: Map, mirror: Mirror) -> dict[str, list[FlatProvider]]:
    """Return the tenants' providers of machines."""
    found: dict[str, list[FlatProvider]] = {}
    root = map.nodes.providers.path
    for tenant in mirror.names(root):
        of = [one for _, _, one in _read(mirror, f"{root}/{tenant}", FlatProvider)]
        if of:
            found[unescape(tenant)] = sorted(of, key=lambda one: one.name)
    return found


def is_made(request: NodeRequest, labels: Mapping[str, object], known: list[FlatProvider]) -> bool:
    """Return whether a request wants machines that are made on demand. Labels of the inventory take precedence."""
    # A label that both have counts as one of the inventory, so that adding a provider does not change existing jobs.
    return any(label not in labels and any(one.label(label) is not None for one in known) for _, label in request.nodes)


def _read(mirror: Mirror, path: str, type: type[R]) -> Iterator[tuple[str, int, R]]:
    for entry in mirror.under(path):
        if entry.path == path:
            continue
        found = _decoded(entry, cast(Any, type))
        if found is not None:
            yield entry.path, entry.version, found


@lru_cache(maxsize=20_000)
def _decoded(entry: Entry, type: Any) -> Any:  # of that type
    """Return a record; None if it cannot be read. Results are cached, because all records are read often and few
    change."""
    try:
        return Address(entry.path, type).decode(entry.value)
    except Undecodable:
        return None


def slot_ids(machine: MadeNode) -> list[str]:
    """Return the ids of all slots that a machine ever has."""
    return [derived(machine.id, str(number)) for number in range(machine.slots)]


def open_slots(machine: MadeNode, many: int = OPENED_MAX) -> tuple[MadeNode, list[MadeNode]]:
    """Return the machine with at most this many more of its slots open, and these slots: those of the lowest
    numbers."""
    upto = min(machine.opened + many, machine.slots)
    definition = {
        # Settings that only the creation needs, such as user data, would be stored once for each slot.
        "label": {key: value for key, value in machine.settings["label"].items() if key != "userdata"},
        "image": {key: value for key, value in machine.settings["image"].items() if key == "upload"},
        "flavor": {},
        "provider": {key: value for key, value in machine.settings["provider"].items() if key == "region"},
    }
    ids = slot_ids(machine)
    # Only the tenant's limit counts slots by their part; the account counts the machine.
    share = {kind: much / machine.slots for kind, much in machine.uses.items()}
    several = [
        MadeNode(
            id=ids[number],
            provider=machine.provider,
            connection=machine.connection,
            label=machine.label,
            settings=definition,
            digest=machine.digest,
            tenant=machine.tenant,
            requested_ms=machine.requested_ms,
            since_ms=machine.since_ms,
            slot=number,
            main=machine.id,
            share=share,
        )
        for number in range(machine.opened, upto)
    ]
    return msgspec.structs.replace(machine, opened=upto), several


def with_machine(slot: MadeNode, machine: MadeNode) -> MadeNode:
    """Return a slot of a machine that is usable: ready, with the machine's properties."""
    # A slot may be recorded before its machine exists, so it gets the machine's address only here.
    return msgspec.structs.replace(
        slot,
        state="ready",
        external_id=machine.external_id,
        host=machine.host,
        about=machine.about,
        resources=machine.resources,
        secrets=machine.secrets,
        why="",
    )


class MachineSlots:
    """Hold the slots of all machines in one pass."""

    def __init__(self, nodes: Mapping[str, MadeNode]) -> None:
        self._nodes, self._of = nodes, dict[str, list[MadeNode]]()
        for node in nodes.values():
            if node.main:
                self._of.setdefault(node.main, []).append(node)

    def of(self, machine: str) -> list[MadeNode]:
        """Return the remaining slots of a machine."""
        return self._of.get(machine, [])

    def lost(self, slot: MadeNode) -> bool:
        """Return whether the slot's machine is being deleted, or gone."""
        machine = self._nodes.get(slot.main)
        return machine is None or machine.state in ENDING

    def busy(self, slot: MadeNode) -> bool:
        """Return whether a slot of the same machine has a user; unused ones are deleted together."""
        return any(is_busy(one) for one in self.of(slot.main))


def is_busy(slot: MadeNode) -> bool:
    """Return whether the slot has a user."""
    return bool(slot.request) or slot.state not in (*FREE, *ENDING)


def held_machines(nodes: Iterable[MadeNode]) -> set[str]:
    """Return the machines that have a held slot."""
    return {one.main for one in nodes if one.main and one.state == "hold"}
