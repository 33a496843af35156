"""Test pokes from the network: unsigned ones are refused, and signed ones cause polls of only one repository, one at
a time."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from click.testing import CliRunner

from headgate.adapters.git.poll.watch import REST_S
from headgate.cli.hook import hook
from headgate.testing.repositories import Repositories, run_git
from tests.e2e.headgate import SETTINGS, Headgate
from tests.waiting import wait_for

from .arena import PIPELINES, UNIT

SECRET = "0123456789abcdef0123456789abcdef"
TENANTS = """
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [code/api, other/app]}}
"""
FLOOD = 300
CLIENT = httpx.Client(timeout=60)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headgate]:
    """Repositories that are reached over ssh, and polled every two hours."""
    tmp_path = tmp_path_factory.mktemp("far")
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    for name in ("code/api", "other/app"):
        repositories.create(name, {"README": "read me\n"})
    ssh, log = tmp_path / "ssh", tmp_path / "talks"
    ssh.write_text(f'#!/bin/sh\necho "begin $2" >> {log}\nsh -c "$2"\ncode=$?\necho "end $2" >> {log}\nexit $code\n')
    ssh.chmod(0o755)
    log.touch()
    there = f"baseurl = ssh://git.example{repositories.hub}\npoll_delay = 7200\nwebhook_token = {SECRET}"
    found = Headgate(repositories, TENANTS, settings=SETTINGS.replace("baseurl = hub", there))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GIT_SSH_COMMAND", str(ssh))
        environment.setenv("GIT_SSH_VARIANT", "simple")
        found.start()
    yield found
    found.stop()


def poked(here: Headgate, body: bytes, secret: str = SECRET, connection: str = "local") -> httpx.Response:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={signature}"}
    at = f"{here.url}/api/connection/{connection}/payload"
    return CLIENT.post(at, content=body, headers=headers)


def poke_body(repository: str, at: float, id: str = "") -> bytes:
    return json.dumps({"repository": repository, "at": int(at), "id": id}).encode()


def talks(here: Headgate, name: str) -> list[str]:
    """Events at one repository, one word for each beginning and end."""
    lines = (here.root / "talks").read_text().splitlines()
    return [line.split()[0] for line in lines if f"/{name}'" in line]


def installed(here: Headgate, name: str) -> None:
    """Install it like the server's administrator."""
    file = here.root / "poke"
    file.write_text(
        CliRunner()
        .invoke(hook, ["poke", "--config", str(here.root / "headgate.conf"), "--url", here.url, "local"])
        .stdout
    )
    done = CliRunner().invoke(
        hook, ["install", "--page", "https://h/t/x", "--poke", str(file), str(here.repositories.hub / name)]
    )
    assert "Headgate accepted the test poke" in done.output, done.output


def lands(here: Headgate, name: str, topic: str) -> None:
    """The next poll is two hours away: anything seen was hinted at."""
    here.repositories.propose(name, topic, {topic: "x\n"})
    here.repositories.approve(name, topic)

    def landed() -> bool:
        return topic in run_git("ls-tree", "--name-only", "master", at=here.repositories.hub / name).split()

    wait_for(f"{topic} lands", landed)


@pytest.mark.long
def test_forged_and_old_pokes_and_those_of_unknown_projects_cause_no_poll(far: Headgate) -> None:
    installed(far, "code/api")
    lands(far, "code/api", "one")  # so that everything has been polled
    before, now = talks(far, "other/app"), time.time()
    unsigned = CLIENT.post(f"{far.url}/api/connection/local/payload", content=poke_body("other/app", now))
    assert unsigned.status_code == 401
    for secret in ("x", "0" * 32, SECRET[:-1]):
        assert poked(far, poke_body("other/app", now), secret).status_code == 401
    for at in (now - 3_600, now + 3_600):  # the server listened, or the clock is wrong
        refused = poked(far, poke_body("other/app", at))
        assert refused.status_code == 401 and "clock" in refused.text
    for connection in ("..%2flocal", "nobody"):
        assert poked(far, poke_body("other/app", now), connection=connection).status_code == 404
    for body, status in ((b"", 400), (b"[" * 5_000, 400), (b"x" * 20_000, 413), (b'{"repository": {}}', 400)):
        assert poked(far, body).status_code == status
    for name in ("nothing", "../../other", "app", "/", "other/app/../../x"):
        answer = poked(far, poke_body(name, now))
        assert answer.status_code == 200 and "ignored" in answer.json()
    lands(far, "code/api", "two")
    assert talks(far, "other/app") == before
    assert SECRET not in far.log.read_text()


@pytest.mark.long
def test_a_flood_of_pokes_costs_one_poll_at_a_time_and_delays_nobody(far: Headgate) -> None:
    installed(far, "code/api")
    lands(far, "code/api", "three")
    before, now, began = len(talks(far, "other/app")), time.time(), time.monotonic()
    with ThreadPoolExecutor(4) as flood:
        bodies = [poke_body("/srv/git/other/app.git", now, str(number // 2)) for number in range(FLOOD)]  # each twice
        answers = flood.map(lambda body: poked(far, body).status_code, bodies)
        lands(far, "code/api", "four")
        assert set(answers) <= {200, 503}
    took_s, there = time.monotonic() - began, talks(far, "other/app")[before:]
    assert there == [("begin", "end")[number % 2] for number in range(len(there))]  # one at a time
    assert 0 < there.count("begin") <= took_s / REST_S + 2
    installed(far, "other/app")
    lands(far, "other/app", "five")
