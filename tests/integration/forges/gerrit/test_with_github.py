"""Test a change on Gerrit and one on GitHub that need each other: tested together, landed in order, reported on
both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from headgate.adapters.forges.gerrit.driver import git_connection as gerrit_git
from headgate.adapters.forges.github.forge import connect
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.git import engine
from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.change import numbered
from headgate.gate.state.model import Item
from headgate.gate.state.works import BuildOutcome, BuildSpec, Landing, LandRequest, RepoState
from headgate.map.state import load
from headgate.ports.forge import Forge as Driver
from headgate.ports.forge import MergeLanded, NotLanded
from headgate.services import courier
from headgate.store.memory import MemoryBackend
from headgate.testing.forges.github.model import FakeGitHubPull
from headgate.testing.forges.github.people import GitHub
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories
from headgate.testing.servers.gerritpeople import Clone, ReviewingChange, ReviewingPeople
from tests.integration.forges.gerrit.conftest import QUICK, Forge
from tests.integration.github.conftest import hub
from tests.integration.github.ground import SECRET, Ground, ground
from tests.waiting import until

__all__ = ["hub"]

CONFIG = """
- pipeline:
    name: check
    manager: independent
    success-message: The check passed.
    failure-message: The check failed.
    trigger:
      hub: [{event: pull_request, action: [opened, changed, edited]}]
      review: [{event: patchset-created}]
    success: {hub: {status: success, comment: true}, review: {Verified: 1}}
    failure: {hub: {status: failure, comment: true}, review: {Verified: -1}}
- pipeline:
    name: gate
    manager: dependent
    success-message: The gate passed.
    failure-message: The gate failed.
    trigger:
      hub: [{event: pull_request_review, action: submitted, state: approved}]
      review: [{event: comment-added, approval: [{Code-Review: 2}]}]
    require:
      hub: {open: true, review: [{type: approved, permission: write}]}
      review: {open: true, current-patchset: true, approval: [{Code-Review: 2}]}
    success: {hub: {status: success, comment: true, merge: true}, review: {Verified: 2, submit: true}}
    failure: {hub: {status: failure, comment: true}, review: {Verified: -2}}
- job: {name: unit, parent: null, run: jobs/unit}
- project: {name: ^.*/(acme|code)/.*, queue: integrated, check: {jobs: [unit]}, gate: {jobs: [unit]}}
- queue: {name: integrated, allow-circular-dependencies: true}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local: {config-projects: [ops]}
      hub: {untrusted-projects: [acme/rocket]}
      review: {untrusted-projects: [PROJECT]}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(engine, "REST_MAX_S", 0.0)


class One(NamedTuple):
    """Represent a change on either forge."""

    key: str
    url: str
    of: FakeGitHubPull | ReviewingChange


class Side(Protocol):
    """Declare the actions of people on a forge."""

    async def propose(self, name: str, files: Mapping[str, str], needs: str = "") -> One: ...
    async def revise(self, one: One, files: Mapping[str, str], needs: str = "") -> One: ...
    async def approve(self, one: One) -> None: ...
    async def landed(self, one: One) -> bool: ...
    async def comments_of(self, one: One) -> list[str]:
        """Return Headgate's comments."""
        ...

    async def refuse(self) -> str:
        """Refuse merges from now on, without an earlier sign; return the message that people see."""
        ...


def _message(name: str, needs: str) -> str:
    return f"{name}\n\nDepends-On: {needs}" if needs else name


class AtGerrit:
    def __init__(self, people: ReviewingPeople, clone: Clone) -> None:
        self._people, self._clone = people, clone

    async def propose(self, name: str, files: Mapping[str, str], needs: str = "") -> One:
        return await self._push(name, files, needs, "")

    async def revise(self, one: One, files: Mapping[str, str], needs: str = "") -> One:
        assert isinstance(one.of, ReviewingChange)
        return await self._push("Revised", files, needs, one.of.change_id)

    async def _push(self, name: str, files: Mapping[str, str], needs: str, change_id: str) -> One:
        made = await asyncio.to_thread(self._clone.proposes, files, _message(name, needs), change_id=change_id)
        url = f"{self._people.url}/c/{made.project}/+/{made.number}"
        return One(numbered(f"127.0.0.1/{made.project}", str(made.number)), url, made)

    async def approve(self, one: One) -> None:
        assert isinstance(one.of, ReviewingChange)
        await asyncio.to_thread(self._people.bob.votes, one.of.number, Code_Review=2)

    async def landed(self, one: One) -> bool:
        assert isinstance(one.of, ReviewingChange)
        return bool((await asyncio.to_thread(self._people.alice.looks, one.of.number))["status"] == "MERGED")

    async def comments_of(self, one: One) -> list[str]:
        assert isinstance(one.of, ReviewingChange)
        wanted = (one.of.number, "MESSAGES", "DETAILED_ACCOUNTS")
        found = (await asyncio.to_thread(self._people.alice.looks, *wanted))["messages"]
        return [message["message"] for message in found if message["author"].get("username") == "headgate"]

    async def refuse(self) -> str:
        await asyncio.to_thread(self._people.requires, self._clone.project, "Never", "label:Code-Review=MIN")
        return "Never"


class AtGitHub:
    def __init__(self, at: Ground) -> None:
        self._at = at

    async def propose(self, name: str, files: Mapping[str, str], needs: str = "") -> One:
        body = f"Depends-On: {needs}" if needs else None
        pull = self._at.ada.propose(self._at.repository, name, files, name, body)
        return One(
            numbered(f"127.0.0.1/{pull.repository.full_name}", str(pull.number)),
            f"{self._at.hub.url}/{pull.repository.full_name}/pull/{pull.number}",
            pull,
        )

    async def revise(self, one: One, files: Mapping[str, str], needs: str = "") -> One:
        assert isinstance(one.of, FakeGitHubPull)
        if files:
            self._at.ada.push(self._at.repository, one.of.head_ref, files)
        if needs:
            self._at.ada.edit(one.of, body=f"Depends-On: {needs}")
        return one

    async def approve(self, one: One) -> None:
        assert isinstance(one.of, FakeGitHubPull)
        self._at.bob.review(one.of)

    async def landed(self, one: One) -> bool:
        assert isinstance(one.of, FakeGitHubPull)
        return one.of.merged

    async def comments_of(self, one: One) -> list[str]:
        assert isinstance(one.of, FakeGitHubPull)
        return [comment.body for comment in one.of.comments]

    async def refuse(self) -> str:
        self._at.repository.allow_merge_commit = False
        return "Merge commits are not allowed"


class Ran(NamedTuple):
    """Record a build, and what it found in its workspace."""

    pipeline: str
    key: str
    files: frozenset[str]


@dataclass
class Site:
    gate: Gate
    at: dict[str, Side]
    jobs: Jobs
    landings: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """Changes that a forge was asked to land, with the changes that had landed by then according to their forges."""
    pair: tuple[tuple[Side, One], ...] = ()
    """Those that matter now."""
    parting: bool = False
    """Whether the second forge refuses after one of them has landed."""
    refusal: str = ""

    async def until(self, holds: Callable[[], object], what: str) -> None:
        try:
            await until(what, holds)
        except AssertionError as never:
            raise AssertionError(f"{never}; {self.gated()}; {self.jobs.ran[-4:]}") from None

    async def wait_for_comment(self, side: Side, one: One, *words: str) -> None:
        """Wait until one message contains all of the words."""
        comments: list[str] = []

        async def found() -> bool:
            comments[:] = await side.comments_of(one)
            return any(all(word in text for word in words) for text in comments)

        try:
            await until(f"{one.key} is told {words}", found, every_s=0.1)
        except AssertionError as never:
            raise AssertionError(f"{never}; it has {comments}") from None

    async def lands(self, side: Side, one: One) -> None:
        try:
            await until(f"{one.key} lands", lambda: side.landed(one), every_s=0.1)
        except AssertionError as never:
            raise AssertionError(f"{never}; it is told {await side.comments_of(one)}") from None

    def gated(self) -> list[tuple[str, str]]:
        """Return the queue: keys and commits."""
        return [(change.key, change.commit) for item in self._items() for change in item.changes]

    def _items(self) -> Iterable[Item]:
        place, mirror = self.gate.context.map.tenant("example").pipeline("gate"), self.gate.context.mirror
        return [item for _, item in load(place, mirror.under(place.path)).state.items()]

    def goes_on(self) -> None:
        """Let builds end."""
        assert self.gate.runner.hold is not None
        self.gate.runner.hold.set()

    def queue(self) -> list[str]:
        return [key for key, _ in self.gated()]


@dataclass
class Jobs:
    """Fail if the change's own project has a file with `bad` in its name."""

    executor: GitEngine
    root: Path
    ran: list[Ran] = field(default_factory=list)

    async def unit(self, spec: BuildSpec, state: RepoState) -> BuildOutcome:
        files = set[str]()
        for project, branch in dict.fromkeys((one.project, one.branch) for one in state.chain):
            place = self.root / spec.build / project
            await self.executor.checkout(state, project, branch, place)
            files |= {file.name for file in place.iterdir()}
        self.ran.append(Ran(spec.pipeline, spec.change.key, frozenset(files)))
        own = {file.name for file in (self.root / spec.build / spec.change.project).iterdir()}
        return BuildOutcome(spec.build, "FAILURE" if any("bad" in name for name in own) else "SUCCESS")

    def last(self, pipeline: str, key: str) -> frozenset[str]:
        """Return what its latest build found; empty: there was none."""
        return next(
            (one.files for one in reversed(self.ran) if (one.pipeline, one.key) == (pipeline, key)), frozenset()
        )


def witnessed(driver: Driver, landings: list[tuple[str, frozenset[str]]], site: Callable[[], Site]) -> None:
    """Record what has landed whenever the forge is asked to land something."""
    lands = driver.land

    async def land(work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        there = [one.key for side, one in site().pair if await side.landed(one)]
        landings.append((part.change.key, frozenset(there)))
        if there and site().parting:
            (own,) = (side for side, one in site().pair if one.key == part.change.key)
            site().refusal = await own.refuse()
        return await lands(work, part)

    driver.land = land  # type: ignore[method-assign]


@pytest.fixture
async def site(
    hub: GitHub, forge: Forge, people: ReviewingPeople, project: str, clone: Clone, tmp_path: Path
) -> AsyncIterator[Site]:
    """Run a gate with both, after its first poll of both."""
    hub.world.mergeability_asks = 0
    review = await forge(QUICK)
    Repositories(tmp_path / "plain").create("ops", {"zuul.yaml": CONFIG, "jobs/unit": "#!/bin/sh\n"})
    async with ground(hub, tmp_path) as here:
        connected = _hub(here, tmp_path)
        forges = {"hub": ("github", connected), "review": ("gerrit", Connected(gerrit_git(review._server), review))}
        executor = GitEngine(tmp_path / "executor", {name: one.git for name, (_, one) in forges.items()})
        jobs, landings, made = Jobs(executor, tmp_path / "work"), list[tuple[str, frozenset[str]]](), list[Site]()
        for _, one in forges.values():
            witnessed(one.forge, landings, lambda: made[0])
        tenants, plain = TENANTS.replace("PROJECT", project), Repositories(tmp_path / "plain").hub
        async with gate(tmp_path, plain, MemoryBackend(), tenants, {"unit": jobs.unit}, forges=forges) as found:
            at: dict[str, Side] = {"GitHub": AtGitHub(here), "Gerrit": AtGerrit(people, clone)}
            made.append(Site(found, at, jobs, landings))
            await made[0].until(lambda: all(_seen(found, name) for name in forges), "both are looked at")
            yield made[0]


def _hub(here: Ground, root: Path) -> Connected:
    """Return the connection that deliveries go to."""
    (root / "app.pem").write_text(here.hub.keys[here.app.id])
    section = {"server": here.hub.url, "app_id": str(here.app.id), "app_key": "app.pem", "webhook_token": SECRET}
    looking: list[GitEngine] = []
    connected = connect(DriverOptions("hub", section, root, lambda: looking[0], lambda: int(time.time() * 1000)))
    looking.append(GitEngine(root / "looking", {"hub": connected.git}))
    here.forge = connected.forge  # type: ignore[assignment]
    return connected


def _seen(found: Gate, connection: str) -> bool:
    """Return whether the branches there are known."""
    branches = found.context.map.cache.connection(connection).branches.data
    return found.context.mirror.get(branches.path) is not None


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize(("needed", "other"), [("Gerrit", "GitHub"), ("GitHub", "Gerrit")])
async def test_a_change_lands_behind_the_one_at_the_other_forge_that_it_needs(
    site: Site, needed: str, other: str
) -> None:
    there, here = site.at[needed], site.at[other]
    first = await there.propose("first", {"first": "1\n"})
    second = await here.propose("second", {"second": "1\n"}, first.url)
    site.pair = ((there, first), (here, second))
    await site.wait_for_comment(there, first, "The check passed.")
    await site.wait_for_comment(here, second, "The check passed.")
    assert site.jobs.last("check", second.key) >= {"first", "second"}, "it is tested with what it needs"
    assert site.jobs.last("check", first.key) & {"first", "second"} == {"first"}, "and not the other way round"

    await here.approve(second)
    await site.wait_for_comment(here, second, f"Depends-On: {first.key}", "will be enqueued once it is")
    site.gate.runner.hold = asyncio.Event()
    await there.approve(first)
    await site.until(lambda: site.queue() == [first.key, second.key], "it comes in behind what it needs")
    site.goes_on()
    await site.lands(there, first)
    await site.lands(here, second)
    assert site.landings == [(first.key, frozenset()), (second.key, frozenset({first.key}))]
    assert site.jobs.last("gate", second.key) >= {"first", "second"}

    await fails(site, there, here)
    await is_replaced(site, there, here)
    await comes_late(site, there, here)


async def fails(site: Site, there: Side, here: Side) -> None:
    """The dependency fails, with the other change behind it."""
    first = await there.propose("bad", {"bad": "1\n"})
    second = await here.propose("innocent", {"innocent": "1\n"}, first.url)
    site.pair = ((there, first), (here, second))
    site.landings.clear()
    await both_are_gated(site, there, first, here, second)
    site.goes_on()
    await site.wait_for_comment(there, first, "The gate failed.")
    await site.wait_for_comment(here, second, "The gate failed.", first.key)
    await site.until(lambda: site.queue() == [], "both are out")
    assert site.landings == [] and not await there.landed(first) and not await here.landed(second)


async def is_replaced(site: Site, there: Side, here: Side) -> None:
    """The dependency gets a new patchset, with the other change behind it."""
    first = await there.propose("early", {"early": "1\n"})
    second = await here.propose("user", {"user": "1\n"}, first.url)
    site.pair = ((there, first), (here, second))
    site.landings.clear()
    await both_are_gated(site, there, first, here, second)
    (replaced, _) = site.gated()
    first = await there.revise(first, {"late": "1\n"})
    await site.until(lambda: replaced not in site.gated(), "it is gated no more as it was")
    site.goes_on()
    await there.approve(first)
    if not await here.landed(second):  # if the approval of the first one stays, it may have entered again
        await here.approve(second)
    await site.lands(there, first)
    await site.lands(here, second)
    assert site.landings == [(first.key, frozenset()), (second.key, frozenset({first.key}))]
    assert "late" in site.jobs.last("gate", first.key)
    assert site.jobs.last("gate", second.key) >= {"late", "user"}, "nobody lands untested"


async def comes_late(site: Site, there: Side, here: Side) -> None:
    """The dependency is proposed after the other change, which is then tested once more."""
    last = await there.propose("last", {"last": "1\n"})
    number = last.key.rpartition("#")[2]
    url = f"{last.url.removesuffix(number)}{int(number) + 1}"
    second = await here.propose("hasty", {"hasty": "1\n"}, url)
    await site.wait_for_comment(here, second, "The check passed.", "is ignored until it is proposed")
    assert "missing" not in site.jobs.last("check", second.key)
    first = await there.propose("missing", {"missing": "1\n"})
    assert first.url == url
    await site.until(lambda: "missing" in site.jobs.last("check", second.key), "it is tested with what it needs")


async def both_are_gated(site: Site, there: Side, first: One, here: Side, second: One) -> None:
    """Run with builds that do not end."""
    site.gate.runner.hold = asyncio.Event()
    await there.approve(first)
    await site.until(lambda: site.queue() == [first.key], "what is needed is in the gate")
    await here.approve(second)
    await site.until(lambda: site.queue() == [first.key, second.key], "the other is behind it")


async def circle(site: Site, name: str, files: Mapping[str, str]) -> tuple[One, One]:
    """Propose two changes that need each other, with files on Gerrit; return them after they were tested together."""
    review, hub = site.at["Gerrit"], site.at["GitHub"]
    pull = await hub.propose(name, {name: "1\n"})
    change = await review.propose(name, files, pull.url)
    pull = await hub.revise(pull, {}, change.url)
    site.pair = ((review, change), (hub, pull))
    site.landings.clear()
    both = {name, *files}
    for key in (change.key, pull.key):
        await site.until(lambda key=key: site.jobs.last("check", key) >= both, "they are tested together")
    return change, pull


@pytest.mark.long
async def test_a_circle_across_both_lands_or_none_of_it_does_and_each_gets_a_report(site: Site) -> None:
    review, hub = site.at["Gerrit"], site.at["GitHub"]
    change, pull = await circle(site, "broken", {"bad": "1\n"})
    await hub.approve(pull)
    await site.wait_for_comment(hub, pull, "not enqueued in gate", change.key, "will be enqueued once it is")
    await review.approve(change)
    for side, one in site.pair:
        await site.wait_for_comment(side, one, "The gate failed.", "unit", "FAILURE")
        assert site.landings == [] and not await side.landed(one)

    change, pull = await circle(site, "good", {"well": "1\n"})
    await review.approve(change)
    await site.wait_for_comment(review, change, "not enqueued in gate", pull.key, "will be enqueued once it is")
    await hub.approve(pull)
    for side, one in site.pair:
        await site.lands(side, one)
        await site.wait_for_comment(side, one, "The gate passed.")

    change, pull = await circle(site, "half", {"more": "1\n"})
    site.parting = True
    await hub.approve(pull)
    await review.approve(change)
    await site.until(lambda: site.refusal, "one has landed, and the other is refused")
    (_, (missing, there)) = site.landings
    (landed,) = there
    for side, one in site.pair:
        await site.wait_for_comment(
            side,
            one,
            "ALARM: changes that depend on each other have landed only in part",
            f"{landed} has landed as",
            site.refusal,
        )
        await site.wait_for_comment(side, one, f"{missing} has not landed")
        assert await side.landed(one) == (one.key == landed)
