"""Determine which machines to keep ready are missing, and which were unneeded for long. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headgate.config.machines import FlatProvider
from headgate.map.inventory.nodes import FREE, MadeNode
from headgate.services.nodes.machines.choice import Choosing, Make
from headgate.services.nodes.machines.fate import Fate
from headgate.services.nodes.machines.records import SeenMachines, names_of

IDLE_S = 600.0
"""Time after which an unneeded machine is deleted."""


@dataclass(slots=True)
class ReadyPools:
    """Decide in one pass, after the requests, which ready machines are missing and which are unneeded."""

    seen: SeenMachines
    fate: Fate
    choosing: Choosing
    _ready: set[str] = field(default_factory=set)

    def lacking(self) -> Iterator[tuple[str, Make]]:
        """Yield the machines to create, each with its tenant, where there is room for which no request waits."""
        for tenant, providers in sorted(self.seen.providers.items()):
            coming = Counter[str]()
            """Label -> number of machines created in this pass that serve it, including those created for other
            labels."""
            # Labels with more names come first, because one of their machines may also fill the pool of another label.
            for name, most in sorted(_pools(providers).items(), key=lambda pool: (-_serves(pool[0], providers), pool)):
                free = self._free_of(name, providers)
                self._ready.update(node.id for node in free[:most])
                able = sorted((one for one in providers if one.label(name) is not None), key=lambda one: one.name)
                # The machine counts for each of its labels, so that two labels with the same alias do not both create
                # one.
                while most > len(free) + coming[name]:
                    made = next((m for one in able if (m := self._one_more(one, name, tenant)) is not None), None)
                    if made is None:
                        break
                    yield tenant, made
                    coming.update(dict.fromkeys(made.label.names, made.label.slots))

    def idle(self, now_ms: int) -> Iterator[MadeNode]:
        """Yield surplus machines that were unneeded for long; a machine with slots counts only with all of them."""
        late = {
            node.id
            for node in self.seen.nodes.values()
            if not node.request
            and node.state == "ready"
            and now_ms - node.since_ms >= 1000 * IDLE_S
            and not node.fixed
            and node.id not in self._ready
        }
        for node in self.seen.nodes.values():
            if node.id in late and (not node.main or all(one.id in late for one in self.fate.slots.of(node.main))):
                yield node

    def _one_more(self, provider: FlatProvider, name: str, tenant: str) -> Make | None:
        label = provider.label(name)
        return self.choosing.more(provider, label, tenant) if label is not None else None

    def _free_of(self, name: str, providers: Sequence[FlatProvider]) -> list[MadeNode]:
        """Return free machines that serve a label, directly or by an alias: those that are kept ready first, then the
        best."""
        made = {(one.name, label.name): label.digest for one in providers for label in one.serving(name)}
        found = [
            node
            for node in self.seen.nodes.values()
            if not node.request
            and not node.slots
            and node.state in FREE
            and (node.provider, node.label) in made
            and (name in names_of(node) if node.fixed else made[node.provider, node.label] == node.digest)
            and not self.fate.expired(node)
        ]
        return sorted(
            found, key=lambda node: (node.id not in self._ready, FREE.index(node.state), node.requested_ms, node.id)
        )


def _serves(name: str, providers: Sequence[FlatProvider]) -> int:
    """Return the number of names by which jobs may request machines of a label."""
    return max((len(one.names) for of in providers for one in of.labels if one.name == name), default=0)


def _pools(providers: Sequence[FlatProvider]) -> dict[str, int]:
    """Return label -> number of machines that are kept ready."""
    return {one.name: one.min_ready for of in providers for one in of.labels if one.min_ready}
