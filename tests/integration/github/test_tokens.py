"""Test that a token that the git server refuses is renewed once in every process that uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.adapters.forges.github import forge
from headgate.adapters.forges.registry import DriverOptions
from headgate.adapters.git.command import GitLimits, RemoteError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.remote import Remote
from headgate.gate.state.works import CatAnswer, CatRequest
from headgate.ports.reporter import ReporterAway
from headgate.testing.clock import DEADLINE_S
from headgate.testing.forges.github.people import GitHub
from tests.waiting import until

from .ground import PROJECT, SECRET, Ground, ground
from .test_reporting import outbox_message

LIMITS = GitLimits(timeout_s=DEADLINE_S)
REFUSED = "authentication failed|could not read username|401"


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


@pytest.fixture
def engine(here: Ground, tmp_path: Path) -> GitEngine:
    """Provide the git credentials of another process, which does not poll."""
    key = tmp_path / "app.pem"
    key.write_text(here.hub.keys[here.app.id])
    section = {"server": here.hub.url, "app_id": str(here.app.id), "app_key": str(key), "webhook_token": SECRET}
    made: list[GitEngine] = []
    given = DriverOptions("hub", section, tmp_path, lambda: made[0], lambda: int(time.time() * 1000))
    made.append(GitEngine(tmp_path / "merger", {"hub": forge.connect(given).git}))
    return made[0]


def remote(engine: GitEngine) -> Remote:
    return engine.mirror(PROJECT, "hub").remote


def made(here: Ground) -> int:
    """Return how many tokens were requested."""
    return sum(one.template == "/app/installations/{installation_id}/access_tokens" for one in here.hub.server.log)


def revoked(here: Ground) -> None:
    for token in here.hub.world.tokens.values():
        token.revoked = True


@pytest.mark.long
async def test_a_merger_whose_token_is_revoked_early_continues_with_a_new_one(here: Ground, engine: GitEngine) -> None:
    """If several users of the token notice at the same time, all continue with one new token."""
    assert isinstance(answer := await engine.do(CatRequest(PROJECT, "hub")), CatAnswer) and answer.ok
    before = made(here)
    revoked(here)
    head = here.ada.push(here.repository, "main", {"new.txt": "1\n"})
    cat = CatRequest(PROJECT, "hub", paths=("new.txt",))
    found = await asyncio.gather(engine.do(cat), *(remote(engine).refs("refs/heads/") for _ in range(5)))
    assert isinstance(found[0], CatAnswer) and found[0].files == {"main": {"new.txt": "1\n"}}
    assert all(refs["refs/heads/main"] == found[0].branches["main"] for refs in found[1:] if isinstance(refs, dict))
    assert made(here) == before + 1, head


@pytest.mark.long
async def test_a_token_that_expires_during_a_clone_or_before_a_push_is_renewed(here: Ground, engine: GitEngine) -> None:
    await remote(engine).refs()
    stopped = here.hub.fail("POST", "git", status=401, hangs=True)
    cloning = asyncio.create_task(engine.do(CatRequest(PROJECT, "hub", paths=("a.txt",))))
    await until("it is stopped", lambda: not stopped.times, every_s=0.01)
    revoked(here)
    stopped.until.set()
    answer = await cloning
    assert isinstance(answer, CatAnswer) and answer.files == {"main": {"a.txt": "1\n"}}
    revoked(here)
    mirror = engine.mirror(PROJECT, "hub")
    push = ("push", "--", mirror.remote.url, f"{answer.branches['main']}:refs/heads/other")
    await mirror.remote.talk(*push, at=mirror.path, limits=LIMITS)
    assert "refs/heads/other" in await mirror.remote.refs()


async def test_where_new_tokens_are_refused_as_well_few_are_requested(here: Ground, engine: GitEngine) -> None:
    await remote(engine).refs()
    before = made(here)
    here.hub.fail("GET", "git", status=401, times=1_000)
    for _ in range(5):
        with pytest.raises(RemoteError, match=f"(?i){REFUSED}"):
            await remote(engine).refs()
    assert made(here) == before + 1


async def test_a_refusal_for_another_reason_keeps_the_token(here: Ground, engine: GitEngine) -> None:
    await remote(engine).refs()
    before = made(here)
    for status in (403, 404, 502):
        here.hub.fail("GET", "git", status=status)
        with pytest.raises(RemoteError):
            await remote(engine).refs()
    assert made(here) == before


@pytest.mark.long
async def test_a_report_whose_token_is_revoked_early_is_sent_with_a_new_one(here: Ground) -> None:
    pull = here.ada.propose(here.repository, "feature", {"b.txt": "1\n"})
    message = outbox_message(pull, "success", how={"status": "success"})
    await here.forge.report(message)
    revoked(here)
    await here.forge.report(replace(message, key="again", report=replace(message.report, message="Once more.")))
    assert "Once more." in pull.comments[-1].body and len(pull.comments) == 1


async def test_reports_wait_while_all_tokens_are_refused(here: Ground) -> None:
    """Neither an account nor an app whose tokens are refused at once gives up reports."""
    pull = here.ada.propose(here.repository, "feature", {"b.txt": "1\n"})
    bot = here.hub.token("bob")
    _, forge = here.driver("bot", app_id="", app_key="", api_token=bot)
    here.hub.world.tokens[bot].revoked = True
    with pytest.raises(ReporterAway, match="refuses the token of hub"):
        await forge.report(outbox_message(pull, "success"))
    await forge.close()
    here.hub.world.token_life_s = -1
    revoked(here)
    with pytest.raises(ReporterAway, match="refuses the installation"):
        await here.forge.report(outbox_message(pull, "success"))
    assert pull.comments == []
