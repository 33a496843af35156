"""Define the configuration of a world: jobs, pipelines and tenants."""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from headgate.config.operator.model import Connection, Tenant
from headgate.services.contact import EVENT_DATA_MAX_BYTES
from headgate.testing.layouts import parse_tenants
from headgate.testing.sim.worlds import HOST, PROJECTS, SimWorld

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
"""Tenant file with another tenant, which shares one project and a semaphore with the first, and reads more files of it.
"""
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
"""One seed in this many has a check pipeline, which every other time is in another tenant."""
LOCKED_EVERY = 5
"""Of the seeds with `reuse` jobs, one in this many has some that take a semaphore."""
REUSING = """
- job: {name: unit, reuse: true}
- job: {name: both, reuse: true, required-projects: [a, b], semaphore: one}
- job: {name: after, reuse: true, dependencies: both}
- project:
    name: ^.*$
    gate: {jobs: [both, after]}
"""
"""Jobs with `reuse`: one gets only the change's project, one gets both, and one waits for the second."""
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
SEVERAL = "{approvals: {count: 2, not-author: true}, veto: false}"
"""Requirement of some worlds in place of a single approval."""
SEVERAL_EVERY = 8
"""One seed in this many, the last but one, has it."""
TOGETHER = CONFIG.replace("[unit]", "[unit, together]") + "- job: {name: together, dependencies: unit}\n"
"""The same configuration with a job that waits for the other."""
TOGETHER_EVERY = 4
"""Of this many seeds, the first half have it."""
SERVED = CONFIG.replace("[unit]", "[unit, serves, together]") + (
    "- job: {name: together, dependencies: [unit, serves]}\n"
    "- job: {name: serves, run: {name: jobs/x, semaphores: one}}\n"
)
"""The same with a job that pauses until the job that needs it has ended, and with large data returned by all."""
SERVED_EVERY = 5
"""One seed in this many has it."""


APART = """
- project:
    name: ^sim/(evil|config)$
    gate: {jobs: [unit]}
"""
"""Configuration that gives the hostile projects a queue of their own."""

ANNOUNCED = """
- job: {name: tells, type: reporter}
- pipeline:
    name: post
    manager: supercedent
    trigger: {sim: [{event: ref-updated}]}
- project:
    name: ^.*$
    gate: {jobs: [tells]}
    post: {jobs: [together]}
"""
"""A job that runs once a change has landed, and a pipeline for pushes and landings."""
CIRCLES = "- queue: {name: shared, allow-circular-dependencies: true}\n"
TAGGED = """
- pipeline:
    name: release
    manager: independent
    trigger: {sim: [{event: ref-updated, ref: ^refs/tags/}]}
- job: {name: ship}
- project:
    name: ^.*$
    release: {jobs: [ship]}
"""
"""A pipeline for tags."""
POSTED = """
- pipeline:
    name: orders
    manager: serial
    trigger: {bus: [{queue: orders, project: b}]}
    success: {bus: {queue: answers}}
    failure: {bus: {queue: answers}}
- job: {name: pack}
- project:
    name: ^sim/b$
    orders: {jobs: [pack]}
"""
"""A pipeline that messages start."""
TAGGED_EVERY = 13
"""One seed in this many has it, and tags."""
ANNOUNCED_EVERY = 3
"""One seed in this many, the second, has it."""
WIDE, WIDER = 5, 17
"""Numbers of further pipelines that every proposal enters."""
WIDE_EVERY, WIDER_EVERY = 23, 149


def more(count: int) -> str:
    """Return the configuration of this many further pipelines."""
    pipelines = "".join(
        f"- pipeline: {{name: more{n}, manager: independent, trigger: {{sim: [{{event: change-proposed}}]}}}}\n"
        for n in range(count)
    )
    jobs = ", ".join(f"more{n}: {{jobs: [quick]}}" for n in range(count))
    return f"{pipelines}- job: {{name: quick}}\n- project: {{name: ^.*$, {jobs}}}\n" if count else ""


KINDS_WITHIN = 2 * SERVED_EVERY * CHECKED_EVERY * TOGETHER_EVERY * ANNOUNCED_EVERY
"""Number of consecutive seeds that cover every kind, except the wide ones and a few of those with tags."""


class SimKind(NamedTuple):
    """Describe what is configured."""

    served: bool
    together: bool
    check: str
    """The tenant with a check pipeline; empty: there is no such pipeline."""
    hostile: bool = False
    """Whether there is a project with hostile changes."""
    announced: bool = False
    """Whether jobs run for landed changes."""
    wide: int = 0
    """Number of further pipelines."""
    several: bool = False
    """Whether two people must approve, neither of whom proposed it."""
    circular: bool = False
    """Whether changes may need each other, and people make them."""
    tagged: bool = False
    """Whether tags start a pipeline."""
    posted: bool = False
    """Whether messages start a pipeline, and people post them."""
    moving: bool = False
    """Whether pipelines come and go, and queues change their names and projects."""

    reusing: bool = False
    """Whether results of builds are reused."""
    locked: bool = False
    """Whether some of these builds take a semaphore."""

    @classmethod
    def of(cls, seed: int) -> SimKind:
        served, checked = seed % SERVED_EVERY == 0, seed % CHECKED_EVERY == 0
        check = ("t" if seed % (2 * CHECKED_EVERY) else "u") if checked else ""
        wide = WIDER if seed % WIDER_EVERY == 2 else WIDE if seed % WIDE_EVERY == 2 else 0
        together = served or seed % TOGETHER_EVERY < TOGETHER_EVERY / 2
        several = seed % SEVERAL_EVERY == SEVERAL_EVERY - 2
        announced, tagged = together and seed % ANNOUNCED_EVERY == 1, seed % TAGGED_EVERY == 4
        return cls(served, together, check, announced=announced, wide=wide, several=several, tagged=tagged)

    @classmethod
    def hostile_of(cls, seed: int) -> SimKind:
        """Return a kind with a hostile proposer, always with a check pipeline, the only one that a proposer reaches."""
        kind, check = cls.of(seed), "t" if seed % 2 else "u"
        return kind._replace(check=check, hostile=True, announced=False, wide=0, several=False, tagged=False)

    @classmethod
    def circular_of(cls, seed: int) -> SimKind:
        return cls.of(seed)._replace(circular=True, wide=0, several=False, tagged=False)

    @classmethod
    def posted_of(cls, seed: int) -> SimKind:
        return cls.of(seed)._replace(posted=True, wide=0, tagged=False)

    @classmethod
    def reusing_of(cls, seed: int) -> SimKind:
        rest = {"announced": False, "several": False, "tagged": False, "served": False, "reusing": True}
        return cls.of(seed)._replace(check="t" if seed % 2 else "", wide=0, locked=seed % LOCKED_EVERY == 2, **rest)

    @classmethod
    def moving_of(cls, seed: int) -> SimKind:
        check = "t" if seed % 2 else ""
        rest = {"announced": False, "several": False, "tagged": False, "moving": True}
        return cls.of(seed)._replace(check=check, wide=2 if seed % 3 == 0 else 0, **rest)

    @property
    def shares_semaphores(self) -> bool:
        """Return whether hostile jobs take the semaphores that everybody's jobs take."""
        return not self.hostile or self.check == "u"

    @property
    def tenants(self) -> str:
        """Return the tenant file."""
        text = TENANTS if self.check == "u" else TENANT
        return text.replace("untrusted-projects: [", "untrusted-projects: [evil, ") if self.hostile else text

    @property
    def pipelines(self) -> dict[str, str]:
        """Return pipeline -> its tenant."""
        ours = [
            "gate",
            *["post"] * self.announced,
            *["release"] * self.tagged,
            *["orders"] * self.posted,
            *(f"more{n}" for n in range(self.wide)),
        ]
        return {**({"check": self.check} if self.check else {}), **dict.fromkeys(ours, "t")}

    def config(self, gone: Collection[str] = (), queue: str = "shared", apart: str = "") -> str:
        """Return the text of the config project, without the pipelines `gone`, with its queue named `queue`; the
        project `apart` has a queue of its own."""
        config = SERVED if self.served else TOGETHER if self.together else CONFIG
        if self.several:
            config = config.replace("{approved: true}", SEVERAL)
        # The other tenant then shares it, and the tenant file declares it.
        if self.check == "u":
            config = config.replace(SEMAPHORE, "")
        if self.hostile:
            if self.shares_semaphores:
                config = config.replace("name: ^.*$", "name: ^sim/(a|b)$") + APART
            else:
                # Hostile jobs must not take a semaphore for which honest ones wait.
                config = config.replace(", semaphore: one}", "}")
        config += (
            CIRCLES * self.circular + CHECK * (self.check == "t") + ANNOUNCED * self.announced + TAGGED * self.tagged
        )
        if self.reusing:
            config = config.replace("window: 3", "window: 6")
            config = config if self.locked else config.replace(", semaphore: one}", "}")
        config += REUSING * self.reusing + POSTED * self.posted + more(self.wide)
        for name in gone:
            # Pipelines are written on one line or on several.
            config = re.sub(rf"- pipeline:( {{name: {name},.*\n|\n    name: {name}\n(    .*\n)*)", "", config)
        config = config.replace("queue: shared", f"queue: {queue}")
        return f"{config}- project: {{name: {apart}, queue: lonely}}\n" if apart else config

    def world(self, chance: random.Random) -> SimWorld:
        return SimWorld(
            chance,
            self.config(),
            JOBS + CHECK if self.check == "u" else "",
            gating=("unit", *["together"] * self.together, *["both", "after"] * self.reusing),
            reusing={"unit": (), "both": PROJECTS, "after": ()} if self.reusing else {},
            pipelines=self.pipelines,
            announced=self.announced,
            several=self.several,
            circular=self.circular,
            moving=self.moving,
            served=("together",) if self.served else (),
            returned={"much": "x" * (EVENT_DATA_MAX_BYTES + 1)} if self.served else {},
        )


@cache
def parsed(text: str) -> dict[str, Tenant]:
    return parse_tenants(
        text, "tenants.yaml", {"sim": Connection("sim", HOST, bound=True), "bus": Connection("bus", "", "queue")}
    )
