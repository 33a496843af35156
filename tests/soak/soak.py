"""Run changes through `headgate run`, and measure the resources of the process and its directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.testing.repositories import Repositories
from tests.e2e.headgate import SETTINGS, Headgate
from tests.waiting import wait_for

TENANTS = """
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [code]}}
"""
CONFIG = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: unit, parent: null, run: jobs/unit}
- project: {name: code, gate: {jobs: [unit]}}
"""
BATCH = 10
"""Changes proposed at a time."""
LAND_S = 300.0
"""Time limit for a batch, on a busy machine."""


class Sample(NamedTuple):
    """Hold the resources after this many changes."""

    changes: int
    descriptors: int
    threads: int
    memory_kb: int
    packs: int
    loose: int
    store_kb: int
    logs: int
    """Directories of builds."""
    others: int
    """Files elsewhere in the state directory."""


class Growth(NamedTuple):
    """Permitted growth of each resource, after the first quarter, and per change."""

    at_once: int
    per_change: float


ALLOWED = Sample(
    Growth(0, 0),
    descriptors=Growth(40, 0.0),
    threads=Growth(6, 0.0),
    memory_kb=Growth(30_000, 15.0),
    packs=Growth(60, 0.0),
    loose=Growth(2_600, 0.0),
    store_kb=Growth(2_000, 30.0),
    logs=Growth(0, 1.2),
    others=Growth(150, 0.0),
)


class Soak:
    def __init__(self, root: Path) -> None:
        self.repositories = Repositories(root)
        self.repositories.create("config", {"zuul.yaml": CONFIG, "jobs/unit": "#!/bin/sh\ntrue\n"})
        self.repositories.create("code", {"README": "read me\n"})
        self.headgate = Headgate(self.repositories, TENANTS, settings=SETTINGS, copied=False)
        self.landed = 0

    def run(self, changes: int, every: int) -> list[Sample]:
        """Return samples, one after `every` changes."""
        self.headgate.start()
        try:
            samples = [self._sample()]
            while self.landed < changes:
                self._batch()
                if self.landed - samples[-1].changes >= every or self.landed >= changes:
                    samples.append(self._sample())
            return samples
        finally:
            self.headgate.stop()

    def _batch(self) -> None:
        numbers = range(self.landed, self.landed + BATCH)
        for number in numbers:
            self.repositories.propose("code", f"t{number}", {f"d{number % 100}/f{number}": f"{number}\n"})
            self.repositories.approve("code", f"t{number}")

        def are_landed() -> bool:
            here = self.repositories.hub / "code/refs/for/master"
            return not any((here / f"t{number}").exists() for number in numbers)

        wait_for(f"changes {numbers} land", are_landed, LAND_S)
        wait_for("nothing is queued", lambda: not self.headgate.items("gate"), LAND_S)
        self.landed += BATCH

    def _sample(self) -> Sample:
        assert self.headgate.process is not None
        process, state = Path(f"/proc/{self.headgate.process.pid}"), self.headgate.root / "state"
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        files = [Path(at) / name for at, _, names in os.walk(state) for name in names]
        packs = sum(file.suffix == ".pack" for file in files)
        loose = sum(file.parent.parent.name == "objects" and len(file.parent.name) == 2 for file in files)
        logged = sum((state / "logs") in file.parents for file in files)
        return Sample(
            self.landed,
            len(list((process / "fd").iterdir())),
            int(status["Threads"]),
            int(status["VmRSS"].split()[0]),
            packs,
            loose,
            sum(file.stat().st_size for file in state.glob("headgate.sqlite*")) // 1024,
            len(list((state / "logs").iterdir())) if (state / "logs").exists() else 0,
            len(files) - loose - logged,
        )


def table(samples: Sequence[Sample]) -> str:
    rows = [Sample._fields, *(tuple(map(str, sample)) for sample in samples)]
    return "\n".join("  ".join(f"{cell:>11}" for cell in row) for row in rows)


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return the resources that grow more than permitted."""
    early = samples[max(1, len(samples) // 4)]
    found = []
    for name, allowed in zip(Sample._fields[1:], ALLOWED[1:], strict=True):
        growth: Growth = allowed  # type: ignore[assignment]  # a sample of growths
        most = getattr(early, name) + growth.at_once
        for sample in samples[samples.index(early) :]:
            limit = most + growth.per_change * (sample.changes - early.changes)
            if getattr(sample, name) > limit:
                found.append(f"{name} after {sample.changes} changes: {getattr(sample, name)}, more than {limit:.0f}")
                break
    return found
