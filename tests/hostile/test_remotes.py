"""Test servers that hang, trickle, flood or lie: only their own connection suffers."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.adapters.git.command import GitError, GitLimits, GitTimeout, OverTime, RemoteError, git
from headgate.adapters.git.fetch import fetch
from headgate.adapters.git.remote import Remote
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import wait_for

from .arena import TENANTS, Arena
from .servers import endless, gibberish, serving, shouting, silent, trickling

KINDS = {"silent": silent, "endless": endless, "shouting": shouting, "gibberish": gibberish}
SAME = 12
"""Projects of one connection that hang: more than are polled at a time."""


def connection(name: str, url: str) -> str:
    return (
        f"\n[connection {name}]\ndriver = git\nbaseurl = {url}\ncanonical_hostname = {name}.example\npoll_delay = 1\n"
    )


def tenant(name: str, projects: int) -> str:
    listed = ", ".join(f"p{number}" for number in range(projects))
    return f"- tenant: {{name: at-{name}, source: {{{name}: {{untrusted-projects: [{listed}]}}}}}}\n"


@pytest.mark.long
def test_misbehaving_servers_delay_nobody(tmp_path: Path) -> None:
    with ExitStack() as servers:
        urls = {name: f"git://127.0.0.1:{servers.enter_context(serving(talk))}" for name, talk in KINDS.items()}
        urls["trickling"] = f"http://127.0.0.1:{servers.enter_context(serving(trickling))}"
        arena = Arena(tmp_path, settings="".join(connection(name, url) for name, url in urls.items()))
        tenants = "".join(tenant(name, SAME if name == "silent" else 1) for name in urls)
        (arena.headgate.root / "tenants.yaml").write_text(TENANTS + tenants)
        with arena:
            arena.neighbours_land()

            def problem() -> str:
                status = json.dumps(
                    arena.headgate.get("/api/tenant/at-shouting/status")["problems"], ensure_ascii=False
                )
                return status if "very very" in status else ""

            text = wait_for("what the server shouts is told", problem)
            assert len(text) < 10_000 and all(char.isprintable() for char in text)
            assert "\x1b" not in arena.log and "\u202e" not in arena.log
            arena.neighbours_land()
            assert arena.headgate.stop() == 0, arena.log


async def test_a_command_that_does_not_end_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    alias = f"alias.slow=!sleep 300 & echo $! > {mark}; wait"
    with pytest.raises(GitTimeout, match="did not end within 1 s"):
        await git("-c", alias, "slow", at=tmp_path, limits=GitLimits(timeout_s=1.0))
    process = int(mark.read_text())
    wait_for("what it started has ended", lambda: has_ended(process))


def has_ended(process: int) -> bool:
    """None is left, or only its exit status waits to be read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.long
async def test_output_of_git_is_limited_and_its_error_messages_are_cut(tmp_path: Path) -> None:
    with pytest.raises(GitTimeout, match="printed more than 1000000 bytes"):
        await git("-c", "alias.flood=!yes", "flood", limits=GitLimits(out_max_bytes=1_000_000))
    noise = "!head -c 300000000 /dev/zero | tr '\\\\0' '\\\\033' >&2; echo end of it >&2; false"
    with pytest.raises(GitError) as failed:
        await git("-c", f"alias.noise={noise}", "noise")
    assert len(str(failed.value)) < 10_000 and str(failed.value).endswith("end of it")
    assert "\x1b" not in str(failed.value)


ADDRESSES = {
    "shell": "ext::sh -c touch% {mark}",
    "program": "ext::touch {mark}",
    "descriptor": "fd::3",
    "short option": "-utouch {mark}",
    "option of fetch": "--upload-pack=touch {mark}",
    "option of push": "--receive-pack=touch {mark}",
    "host": "ssh://-oProxyCommand=touch%20{mark}/x",
    "short host": "-oProxyCommand=touch {mark}:x",
}


@pytest.mark.parametrize("kind", ADDRESSES)
async def test_an_address_is_no_command(
    repositories: Repositories, mirror: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nor is it an option, which would leave git without an address, so that it would use the `origin` of its
    directory."""
    mark = repositories.root / "mark"
    remote = Remote(ADDRESSES[kind].format(mark=mark))
    monkeypatch.chdir(repositories.work("code"))
    run_git("remote", "add", "origin", str(repositories.hub / "code"), at=mirror)
    heads = {"refs/heads/master": repositories.head("code")}
    for ask in (remote.listing_by_git, remote.default_branch, lambda: fetch(mirror, remote, heads, first=True)):
        with pytest.raises(RemoteError):
            await ask()
    assert not mark.exists() and run_git("for-each-ref", at=mirror) == ""


@pytest.mark.long
async def test_a_pack_beyond_the_limit_is_refused_and_leaves_nothing(
    repositories: Repositories, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the ref that is too large is missing: the others are fetched."""
    work = repositories.work("code")
    run_git("checkout", "-q", "--detach", at=work)
    (work / "large").write_bytes(os.urandom(3_000_000))
    run_git("add", "-A", at=work)
    run_git("commit", "-q", "-m", "Large", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/for/master/large", at=work)
    (work / "large").unlink()
    small = repositories.propose("code", "small", {"small": "x\n"})
    wanted = {
        f"refs/for/master/{topic}": run_git("rev-parse", f"refs/for/master/{topic}", at=repositories.hub / "code")
        for topic in ("large", "small")
    }
    monkeypatch.setattr("headgate.adapters.git.fetch.PACK_MAX_BYTES", 1_000_000)
    refused = await fetch(mirror, Remote(str(repositories.hub / "code")), wanted, first=True)
    assert (
        list(refused) == ["refs/for/master/large"]
        and "it sends more than the limit of 1000000 bytes" in refused["refs/for/master/large"]
    )
    assert run_git("cat-file", "-t", small, at=mirror) == "commit"
    assert not list((mirror / "objects/pack").glob("*tmp*"))


async def test_a_server_that_never_answers_is_given_up(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.adapters.git.remote.LISTING_LIMITS", GitLimits(timeout_s=0.5))
    with serving(silent) as port, pytest.raises(OverTime, match="did not end within"):
        await Remote(f"git://127.0.0.1:{port}/p").listing_by_git()


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("code", {"a": "a\n"})
    return found


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    run_git("init", "-q", "--bare", str(tmp_path / "mirror"), at=tmp_path)
    return tmp_path / "mirror"
