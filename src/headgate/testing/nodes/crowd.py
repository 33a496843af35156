"""Simulate requests for machines that wait while others keep coming.

The requests are small and large, of several projects, for made machines with or without slots, and for listed machines.
The simulation checks that no request waits forever, and none waits for long while there is room.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from headgate.config.machines import STATIC, FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeRequest, NodeWait
from headgate.services.nodes.machines.choice import Choosing, Later, Make, NodePlan
from headgate.services.nodes.machines.demand import NodeSurvey
from headgate.services.nodes.machines.records import SLOT_HOST, host_nodes, new_node, open_slots, with_machine
from headgate.testing.nodes.doubles import MachineInvariantBroken

STEP_S = 60
BUILD_MAX_S = 1_800
"""Duration of the longest build."""
COMING_S = 14_400
"""Time during which requests arrive, at a higher rate than there is room for."""
WAITING_MAX = 10
"""Limit on waiting requests; while it is reached, no new ones arrive."""
WAIT_MAX_S, FREE_MAX_S = 8 * BUILD_MAX_S, 5 * BUILD_MAX_S
"""Longest waits of a request: in total, because several requests for the full capacity wait in one line; and while
there is room, which stays reserved for a larger request that waits for more."""
PROJECT_MAX = 4
LARGE = {"small": 4, "large": 3, "iron": 2, "packed": 4}
"""Label -> number of machines in a large request."""


def _label(name: str, **settings: Any) -> FlatLabel:
    return FlatLabel(name, {"name": name, **settings}, {}, {}, digest=name)


def _providers(chance: random.Random) -> list[FlatProvider]:
    hosts = tuple({"name": f"h{n}", "label": "iron", "slots": 2} for n in range(chance.randrange(1, 4)))
    both = (_label("small"), _label("large"))
    every = (*both, _label("packed", slots=2, reuse=chance.random() < 0.5))
    return [
        FlatProvider("one", "west", "sky", every, limits={"instances": float(chance.randrange(3, 6))}),
        FlatProvider("two", "west", "sky", (_label("small"),)),
        FlatProvider("rack", "rack", STATIC, (_label("iron"),), hosts=hosts),
    ]


@dataclass(slots=True)
class Arrived:
    """Describe a build from its request for machines to its end."""

    request: NodeRequest
    lasts_s: int
    wait: NodeWait | None = None
    begun_s: int = -1
    free_s: int = 0
    """Time that the request waited although there was room."""


@dataclass(slots=True)
class CrowdSimulation:
    """Run once: equal seeds give equal runs."""

    seed: int
    held: int = 0
    """Number of machines that are held by hand during the whole run."""
    labels: Sequence[str] = tuple(sorted(LARGE))
    """Labels that builds request."""
    nodes: dict[str, MadeNode] = field(default_factory=dict)
    builds: list[Arrived] = field(default_factory=list)
    served: int = 0
    now_s: int = 0
    _most: int = 0
    _count: int = 0

    def run(self) -> int:
        """Return how many were served.  Raise MachineInvariantBroken."""
        chance = random.Random(self.seed)
        providers, self._most = _providers(chance), chance.randrange(4, 8)
        for id, node in host_nodes(providers[2]).items():
            self.nodes[id] = replace(node, state="ready")
        for _ in range(self.held):
            one = new_node(providers[0], providers[0].labels[0], {"instances": 1.0}, {}, "t", None, 0)
            self.nodes[one.id] = replace(one, state="hold")
        while self.now_s < COMING_S or self.builds:
            if self.now_s < COMING_S:
                self.builds += self._come(chance)
            elif self.held:
                self.nodes = {id: node for id, node in self.nodes.items() if node.state != "hold"}
            self._end()
            self._serve(providers)
            self.now_s += STEP_S
        return self.served

    def _come(self, chance: random.Random) -> Iterator[Arrived]:
        """Yield more small requests than there is room for, and sometimes a large one."""
        small = sum(one.begun_s < 0 and len(one.request.nodes) == 1 for one in self.builds)
        for _ in range(3 if small < WAITING_MAX else 0):
            name, self._count = chance.choice(self.labels), self._count + 1
            many = LARGE[name] if chance.random() < 0.1 else 1
            nodes = tuple((f"n{place}", name) for place in range(many))
            id, project = f"r{self._count:05}", chance.choice(("red", "blue", "green"))
            request = NodeRequest(id, "t", project, "b", "j", nodes, "host", requested_ms=self.now_s * 1000)
            yield Arrived(request, chance.randrange(60, BUILD_MAX_S))

    def _end(self) -> None:
        for one in [b for b in self.builds if 0 <= b.begun_s <= self.now_s - b.lasts_s]:
            self.builds.remove(one)
            for node in [n for n in self.nodes.values() if n.request == one.request.id]:
                # Other machines go with their build.
                if node.fixed or node.settings["label"].get("reuse"):
                    back = replace(node, request="", node="", project="", state="ready", since_ms=self.now_s * 1000)
                    self.nodes[node.id] = back
                else:
                    del self.nodes[node.id]
        left = {node.main for node in self.nodes.values()}
        for machine in [node for node in self.nodes.values() if node.slots and node.id not in left]:
            del self.nodes[machine.id]

    def _site(self, providers: Sequence[FlatProvider]) -> NodeSurvey:
        return NodeSurvey(
            providers={"t": providers},
            nodes=list(self.nodes.values()),
            uses=lambda provider, _: {} if provider.is_static else {"instances": 1.0},
            account=lambda provider: ({} if provider.is_static else {"instances": float(self._most)}, {}),
            closed=lambda *_: "",
            place=lambda node: (node.connection, ""),
            place_of=lambda provider: (provider.connection, ""),
            most_of_project=lambda *_: PROJECT_MAX,
            line=[one.request.id for one in self.builds if one.begun_s < 0],
            order=[one.request.id for one in self.builds],
            now_ms=self.now_s * 1000,
        )

    def _serve(self, providers: Sequence[FlatProvider]) -> None:
        while self._served(providers):
            pass

    def _served(self, providers: Sequence[FlatProvider]) -> bool:
        """Serve all requests in order; return whether to start over because the number of free slots has changed."""
        choosing = Choosing(self._site(providers))
        for one in [b for b in self.builds if b.begun_s < 0]:
            found = choosing.serve(one.request, one.wait)
            if isinstance(found, NodePlan):
                self._give(one, found)
                # New slots may serve requests that were already asked in this round.
                if any(make.label.slots > 1 for make in found.make):
                    return True
            elif isinstance(found, Later):
                for node in found.idle:
                    del self.nodes[node.id]
                self._end()
                if found.idle:
                    return True
                self._wait(one, found, providers)
            else:
                self.builds.remove(one)
        return False

    def _wait(self, one: Arrived, later: Later, providers: Sequence[FlatProvider]) -> None:
        wait = one.wait or NodeWait(one.request.id, room_ms=self.now_s * 1000)
        one.wait = replace(wait, why=later.why, at=later.at or wait.at)
        # Computed as if nobody else waited: this defines "there is room".
        alone = Choosing(self._site(providers)).serve(one.request, None)
        one.free_s += STEP_S if isinstance(alone, NodePlan) else 0
        waited_s, wanted = self.now_s - one.request.requested_ms // 1000, [label for _, label in one.request.nodes]
        # Machines that are held by hand take room for the whole run, so only the other bound applies then.
        if waited_s > WAIT_MAX_S and not self.held:
            raise MachineInvariantBroken(f"seed {self.seed}: a request for {wanted} waits for {waited_s} s: {one.wait}")
        if one.free_s > FREE_MAX_S:
            raise MachineInvariantBroken(
                f"seed {self.seed}: a request for {wanted} waits although there is room: {one.wait}"
            )

    def _give(self, one: Arrived, plan: NodePlan) -> None:
        id, project, since_ms = one.request.id, one.request.project, self.now_s * 1000
        pairs = [pair for make in plan.make for pair in self._made(make, one.request)]
        for node, name in (*plan.take, *pairs):
            if node.request or (node.id in self.nodes and self.nodes[node.id].request):
                raise MachineInvariantBroken(f"seed {self.seed}: {node.id} is given away twice")
            self.nodes[node.id] = replace(
                node, request=id, node=name, tenant="t", project=project, state="in-use", since_ms=since_ms
            )
        one.begun_s = self.now_s
        self.served += 1
        made = sum(not (node.fixed or node.main) for node in self.nodes.values())
        of = [node.project for node in self.nodes.values() if node.request]
        if made > self._most or max(map(of.count, of)) > PROJECT_MAX:
            raise MachineInvariantBroken(
                f"seed {self.seed}: {made} machines of {self._most}; of projects: {sorted(of)}"
            )

    def _made(self, make: Make, request: NodeRequest) -> list[tuple[MadeNode, str]]:
        """Return the slots that the request gets of a new machine, with their names; all slots of the machine exist
        then."""
        node = new_node(make.provider, make.label, make.uses, {}, "t", request, 0)
        if not node.slots:
            return [(node, make.nodes[0])]
        machine, slots = open_slots(node, node.slots)
        for one in (replace(machine, state=SLOT_HOST), *(with_machine(slot, machine) for slot in slots)):
            self.nodes[one.id] = one
        return [(self.nodes[slot.id], name) for slot, name in zip(slots, make.nodes, strict=False)]
