"""What is configured in a world: which jobs, which pipelines, which tenants."""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

from headgate.config.tenants import Connection, Tenant, parse_tenants
from headgate.services.contact import EVENT_DATA_MAX_BYTES
from headgate.testing.sim.world import HOST, World

TENANT = """
- tenant:
    name: t
    source:
      sim:
        config-projects: [config]
        untrusted-projects: [a, b]
"""
TENANTS = f"""
- global-semaphore: {{name: one, max: 2}}
{TENANT}    semaphores: [one]
- tenant:
    name: u
    semaphores: [one]
    source:
      sim:
        config-projects: [beside]
        untrusted-projects: [{{a: {{extra-config-paths: [more.yaml]}}}}]
"""
"""With another tenant, which has one project with the first, reads more of it, and shares its semaphore."""
CHECK = """
- pipeline:
    name: check
    manager: independent
    trigger: {sim: [{event: change-proposed}]}
    success: {sim: {}}
    failure: {sim: {}}
- project:
    name: ^.*$
    check: {jobs: [unit]}
"""
CHECKED_EVERY = 3
"""Every so many seeds have it beside the gate, each other time in another tenant."""
JOBS = """
- job: {name: base, parent: null, run: jobs/x}
- job: {name: unit, semaphore: one}
"""
SEMAPHORE = "- semaphore: {name: one, max: 2}\n"
CONFIG = f"""{JOBS}{SEMAPHORE}
- pipeline:
    name: gate
    manager: dependent
    trigger: {{sim: [{{event: change-approved}}]}}
    require: {{sim: {{approved: true}}}}
    success: {{sim: {{land: true}}}}
    failure: {{sim: {{}}}}
    window: 3
    window-floor: 2
- project:
    name: ^.*$
    queue: shared
    gate: {{jobs: [unit]}}
"""
TOGETHER = CONFIG.replace("[unit]", "[unit, together]") + "- job: {name: together, dependencies: unit}\n"
"""The same with a job that waits for the other."""
TOGETHER_EVERY = 4
"""Of so many seeds, the first half have it."""
SERVED = CONFIG.replace("[unit]", "[unit, serves, together]") + (
    "- job: {name: together, dependencies: [unit, serves]}\n"
    "- job: {name: serves, run: {name: jobs/x, semaphores: one}}\n"
)
"""The same with a job that pauses until the one that needs it has ended, and much returned by all."""
SERVED_EVERY = 5
"""Every so many seeds have it."""


APART = """
- project:
    name: ^sim/(evil|config)$
    gate: {jobs: [unit]}
"""
"""With it whoever means harm has a queue of its own."""


KINDS_WITHIN = 2 * SERVED_EVERY * CHECKED_EVERY * TOGETHER_EVERY
"""Among so many seeds there is every kind."""


class Kind(NamedTuple):
    """What is configured."""

    served: bool
    together: bool
    check: str
    """The tenant with a check pipeline; none when empty."""
    hostile: bool = False
    """Whether there is a project whose changes mean harm."""

    @classmethod
    def of(cls, seed: int) -> Kind:
        served, checked = seed % SERVED_EVERY == 0, seed % CHECKED_EVERY == 0
        check = ("t" if seed % (2 * CHECKED_EVERY) else "u") if checked else ""
        return cls(served, served or seed % TOGETHER_EVERY < TOGETHER_EVERY / 2, check)

    @classmethod
    def hostile_of(cls, seed: int) -> Kind:
        """Always with a check pipeline: a proposer reaches no other."""
        return cls.of(seed)._replace(check="t" if seed % 2 else "u", hostile=True)

    @property
    def shares_semaphores(self) -> bool:
        """Whether hostile jobs take the semaphores that everybody's jobs take."""
        return not self.hostile or self.check == "u"

    @property
    def tenants(self) -> str:
        """The tenant file."""
        text = TENANTS if self.check == "u" else TENANT
        return text.replace("untrusted-projects: [", "untrusted-projects: [evil, ") if self.hostile else text

    def world(self, chance: random.Random) -> World:
        config = SERVED if self.served else TOGETHER if self.together else CONFIG
        if self.check == "u":
            config = config.replace(SEMAPHORE, "")
        if self.hostile:
            if self.shares_semaphores:
                config = config.replace("name: ^.*$", "name: ^sim/(a|b)$") + APART
            else:
                config = config.replace(", semaphore: one}", "}")
        return World(
            chance,
            config + CHECK * (self.check == "t"),
            JOBS + CHECK if self.check == "u" else "",
            gating=("unit", "together") if self.together else ("unit",),
            pipelines={"check": self.check, "gate": "t"} if self.check else {"gate": "t"},
            served=("together",) if self.served else (),
            returned={"much": "x" * (EVENT_DATA_MAX_BYTES + 1)} if self.served else {},
        )


@cache
def parsed(text: str) -> dict[str, Tenant]:
    return parse_tenants(text, "tenants.yaml", {"sim": Connection("sim", HOST)})
