"""Read what the store says about machines that are made, at one look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar, cast

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeAccount, NodeOrder, NodeRequest, NodeWait
from headgate.map.places import Map
from headgate.map.tree import Address, Undecodable, unescape
from headgate.recipes.mirror import Mirror
from headgate.services.nodes.images.choice import chosen
from headgate.services.nodes.machines.records import digests
from headgate.store.types import At, Entry

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SeenMachines:
    """Hold what the store says about machines at one look. Unreadable records count as missing; `headgate map check`
    reports them."""

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
    # A label that is in both is one of the inventory: adding a provider must not change what existing jobs get.
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
