"""Builds of a day: each takes its time and ends as the plan has it, and nothing is run."""

from __future__ import annotations

import asyncio
import random
import time

from headgate.gate.work import BuildOutcome, BuildSpec, RepoState
from headgate.ports.runner import Contact
from headgate.testing.day.plan import DayPlan

MINUTES = {"lint": 5, "build-docs": 8, "publish": 4, "promote": 2, "release": 10, "unit": 15, "functional": 60,
           "upgrade": 75}  # fmt: skip
OTHER_MINUTES = 25
"""Duration of jobs that projects share."""


class DayMachines:
    """Run builds that take `minute_s` seconds for each planned minute."""

    def __init__(self, plan: DayPlan, minute_s: float) -> None:
        self._proposals = {one.topic: one for one in plan.proposals}
        self._minute_s, self._failed = minute_s, set[str]()
        self.ran = 0

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        """Wait as long as the job takes, or until the build is cancelled."""
        start_ms = _now_ms()
        self.ran += 1
        try:
            async with asyncio.timeout(self._lasts_s(spec)):
                await cancel.wait()
            result = "CANCELED"
        except TimeoutError:
            result = self.ends(spec)
        return BuildOutcome(build=spec.build, result=result, start_ms=start_ms, end_ms=_now_ms())

    def ends(self, spec: BuildSpec) -> str:
        """Return how a build ends that was not cancelled."""
        proposal, topic = self._proposals.get(spec.change.topic), spec.change.topic
        if proposal is None or not spec.job.name.endswith("-unit"):
            return "SUCCESS"
        if proposal.fails and "Patchset 1." in spec.change.message:
            return "FAILURE"
        if proposal.flaky and spec.pipeline == "gate" and topic not in self._failed:
            self._failed.add(topic)
            return "FAILURE"
        return "SUCCESS"

    def _lasts_s(self, spec: BuildSpec) -> float:
        kind = spec.job.name if spec.job.name in MINUTES else spec.job.name.rpartition("-")[2]
        drawn = random.Random(f"{spec.change.topic} {spec.job.name}").uniform(0.7, 1.3)
        return MINUTES.get(kind, OTHER_MINUTES) * self._minute_s * drawn


def _now_ms() -> int:
    return int(time.time() * 1000)
