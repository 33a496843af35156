"""Test a circle across two repositories on GitHub: both land or none, and each gets a report, whoever merges."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.adapters.forges.github.forge import connect
from headgate.adapters.forges.registry import DriverOptions
from headgate.adapters.git import engine
from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.state import load
from headgate.services import courier
from headgate.services.scheduler.changestates import ChangeStates
from headgate.store.memory import MemoryBackend
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubPull, FakeGitHubRepository
from headgate.testing.forges.github.people import GitHub
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories
from tests.integration.github.ground import SECRET, Ground, ground
from tests.waiting import until

CONFIG = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {hub: [{event: pull_request_review, action: submitted, state: approved}]}
    require: {hub: {open: true}}
    success: {hub: {status: success, comment: true, merge: true}}
    failure: {hub: {status: failure, comment: true}}
- job: {name: unit, parent: null, run: jobs/unit}
- project: {name: ^127.0.0.1/acme/.*, queue: integrated, gate: {jobs: [unit]}}
- queue: {name: integrated, allow-circular-dependencies: true}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local: {config-projects: [ops]}
      hub: {untrusted-projects: [acme/rocket, acme/pad]}
"""
WORDS = {
    "merge": ("Merge commits are not allowed on this repository",),
    "push": ("GH006: Protected branch update failed", "Let Headgate's account push"),
}
"""The message about a refusal, and what to do."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(engine, "REST_MAX_S", 0.0)


@dataclass
class Site:
    gate: Gate
    ground: Ground
    rocket: FakeGitHubRepository
    pad: FakeGitHubRepository

    def circle(self, name: str) -> tuple[FakeGitHubPull, FakeGitHubPull]:
        """Propose two changes that need each other."""
        ada, url = self.ground.ada, f"{self.ground.hub.url}/acme"
        needs = f"Depends-On: {url}/rocket/pull/{len(self.rocket.pulls) + 1}"
        first = ada.propose(self.rocket, name, {f"{name}.txt": "1\n"}, f"{name} rocket")
        second = ada.propose(self.pad, name, {f"{name}.txt": "1\n"}, f"{name} pad", needs)
        ada.edit(first, body=f"Depends-On: {url}/pad/pull/{second.number}")
        return first, second

    async def gated(self, *pulls: FakeGitHubPull) -> None:
        """Let them enter the gate after their dependencies are known."""
        keys = {f"127.0.0.1/{one.repository.full_name}#{one.number}" for one in pulls}
        known = ChangeStates(self.gate.context.map, self.gate.context.mirror, ("hub",))

        def needed() -> bool:
            now = known.now()
            return all(key in now and set(now[key].change.needs) == keys - {key} for key in keys)

        await until("it is known what they need", needed)
        self.ground.bob.review(pulls[0])  # which brings the other along, and lands before it

    async def wait_for_comment(self, pull: FakeGitHubPull, *words: str) -> None:
        await until(f"#{pull.number} of {pull.repository.name} is told", lambda: pull.comments)
        await until(f"{words}: {pull.comments}", lambda: all(word in pull.comments[-1].body for word in words))

    def has(self, repository: FakeGitHubRepository, name: str) -> bool:
        tree = hosts.opened(repository)[hosts.heads(repository)["main"]].tree
        return f"{name}.txt" in {entry.name for entry in tree}

    def alarms(self) -> list[set[str]]:
        """Return the parts of circles that have not landed, as the page shows them."""
        place = self.gate.context.map.tenant("example").pipeline("gate")
        state = load(place, self.gate.context.mirror.under(place.path)).state
        return [set(one.missing) for one in state.parted]


@asynccontextmanager
async def site(hub: GitHub, root: Path, lands: str) -> AsyncIterator[Site]:
    """Run a gate whose job fails for changes called `bad`."""

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        return BuildOutcome(spec.build, "FAILURE" if "bad" in spec.change.message else "SUCCESS")

    repositories = Repositories(root / "plain")
    repositories.create("ops", {"zuul.yaml": CONFIG, "jobs/unit": "#!/bin/sh\n"})
    hub.world.mergeability_asks = 0
    async with ground(hub, root) as here:
        rocket, pad = here.repository, hub.repository("acme/pad", {"a.txt": "1\n"})
        (root / "app.pem").write_text(hub.keys[here.app.id])
        section = {"server": hub.url, "app_id": str(here.app.id), "app_key": "app.pem", "webhook_token": SECRET}
        looking: list[GitEngine] = []
        given = DriverOptions(
            "hub", {**section, "land": lands}, root, lambda: looking[0], lambda: int(time.time() * 1000)
        )
        connected = connect(given)
        looking.append(GitEngine(root / "looking", {"hub": connected.git}))
        await here.forge.close()
        here.forge = connected.forge  # type: ignore[assignment]  # which deliveries go to
        forges = {"hub": ("github", connected)}
        async with gate(root, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}, forges=forges) as found:
            yield Site(found, here, rocket, pad)


@pytest.mark.long
@pytest.mark.parametrize("lands", ["merge", "push"])
async def test_both_land_or_none_and_each_gets_a_report(hub: GitHub, tmp_path: Path, lands: str) -> None:
    async with site(hub, tmp_path, lands) as here:
        bad = here.circle("bad")
        await here.gated(*bad)
        for pull in bad:
            await here.wait_for_comment(
                pull, "gate: failed", f"unit of 127.0.0.1/acme/{pull.repository.name}#1 : FAILURE"
            )
        assert (
            not any(pull.merged for pull in bad) and not here.has(here.rocket, "bad") and not here.has(here.pad, "bad")
        )

        good = here.circle("good")
        await here.gated(*good)
        for pull in good:
            await until(f"{pull.title} lands", lambda pull=pull: pull.merged)
            await here.wait_for_comment(pull, "gate: passed")
        assert here.has(here.rocket, "good") and here.has(here.pad, "good") and here.alarms() == []
        await hub.mail.delivered()

        half = here.circle("half")
        refuses(here.pad)
        await here.gated(*half)
        await until("the alarm stands", here.alarms)
        assert here.alarms() == [{"127.0.0.1/acme/pad#3"}] and half[0].merged and not half[1].merged
        landed, missing = "127.0.0.1/acme/rocket#3 has landed as", "127.0.0.1/acme/pad#3 has not landed"
        for pull in half:
            await here.wait_for_comment(
                pull,
                "ALARM: changes that depend on each other have landed only in part",
                landed,
                missing,
                *WORDS[lands],
            )


def refuses(repository: FakeGitHubRepository) -> None:
    """Accept neither merges nor pushes, without an earlier sign."""
    repository.allow_merge_commit = False
    hook = repository.git_dir / "hooks" / "update"
    hook.write_text("#!/bin/sh\necho error: GH006: Protected branch update failed for $1. >&2\nexit 1\n")
