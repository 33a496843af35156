"""Test that a push to a polled server is seen at once, and a hook that cannot announce it blocks nobody."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.cli.hook import hook
from headgate.gate.state.change import EventKind
from headgate.ports.forge import Hint
from headgate.testing.repositories import Repositories, run_git

from .words import DEADLINE_S, PROJECT, counted_git, watching

SECRET = "a secret with 'quotes' and % signs"


@pytest.fixture
def far(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the same repositories, over the user's ssh."""
    ssh = repositories.root / "ssh"
    ssh.write_text('#!/bin/sh\ntest "$1" = git.example && exec sh -c "$2"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    return f"ssh://git.example{repositories.hub}"


@pytest.mark.long
async def test_a_poke_causes_an_immediate_poll(
    repositories: Repositories, far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = counted_git(tmp_path / "counted", monkeypatch)

    def looks() -> int:
        return sum("ls-remote" in line for line in log.read_text().splitlines())

    async with watching(repositories, far, poll_interval_s=3600) as seen:
        await seen.next()
        repositories.propose("code", "one", {"c": "x\n"})
        before = looks()
        for number in range(300):
            seen.stir(Hint(str(number), PROJECT))
        sighting = await seen.next()
        assert [event.change.topic for event in sighting.events if event.kind is EventKind.PROPOSED] == ["one"]
        assert sighting.answered == tuple(map(str, range(300))) and looks() == before + 1
        repositories.propose("code", "two", {"d": "x\n"})
        seen.stir(Hint("again", PROJECT))
        sighting = await seen.next()
        assert sighting.answered == ("again",) and sighting.events[0].change.topic == "two"
        seen.stir(Hint("in vain", PROJECT))
        assert (await seen.next()).answered == ("in vain",)
        count = looks()
        seen.stir(Hint("elsewhere", "git.example/nothing"))
        assert (await seen.next()).answered == ("elsewhere",) and looks() == count
        seen.stir(Hint("anywhere"))
        assert (await seen.next()).answered == ("anywhere",) and looks() == count + 1


@dataclass(slots=True)
class PokeListener:
    """Receive pokes."""

    port: int = 0
    came: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    open: threading.Event = field(default_factory=threading.Event)
    """Set to answer pokes."""

    def of(self, count: int) -> list[dict[str, object]]:
        """Return the contents of the first pokes after their arrival; each is signed."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.came) >= count, DEADLINE_S)
            for headers, body in self.came:
                wanted = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
                assert headers["x-hub-signature-256"] == f"sha256={wanted}"
            return [json.loads(body) for _, body in self.came]


@pytest.fixture
def listener() -> Iterator[PokeListener]:
    found = PokeListener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with found.arrived:
                found.came.append(({name.lower(): value for name, value in self.headers.items()}, body))
                found.arrived.notify_all()
            found.open.wait(DEADLINE_S)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"hint":{"project":"git.example/code"}}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    found.port = server.server_port
    yield found
    found.open.set()
    server.shutdown()
    thread.join()
    server.server_close()


def printed(root: Path, *words: str, token: str = SECRET) -> Result:
    settings = root / "headgate.conf"
    of_percent = token.replace("%", "%%")
    settings.write_text(f"[connection mine]\nbaseurl = ssh://git.example/srv\nwebhook_token = {of_percent}\n")
    return CliRunner().invoke(hook, ["poke", "--config", str(settings), *words])


def installed(root: Path, port: int, at: Path, *words: str) -> Result:
    file = root / "poke"
    file.write_text(printed(root, "--url", f"http://127.0.0.1:{port}", "mine").stdout)
    return CliRunner().invoke(hook, ["install", *words, "--poke", str(file), str(at)])


@contextmanager
def in_a_directory_without_settings(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(root)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    yield


def test_the_hook_reports_each_push_except_those_of_notes(
    repositories: Repositories, tmp_path: Path, listener: PokeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, work = repositories.hub / "code", repositories.work("code")
    listener.open.set()
    with in_a_directory_without_settings(tmp_path, monkeypatch):
        result = installed(tmp_path, listener.port, at)
    assert result.exit_code == 0 and "Headgate accepted the test poke" in result.output, result.output
    assert (at / "hooks/headgate-poke").stat().st_mode & 0o007 == 0
    assert SECRET not in (at / "hooks/headgate-poke").read_text()
    run_git("push", "-q", "origin", "HEAD:refs/notes/headgate", at=work)
    run_git("commit", "-q", "--allow-empty", "-m", "Change nothing", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/for/master/one", at=work)
    tried, pushed = listener.of(2)
    assert {tried["repository"], pushed["repository"]} == {str(at.resolve())}
    at_s = pushed["at"]
    assert isinstance(at_s, int) and abs(at_s - time.time()) < 300
    monkeypatch.setenv("GL_REPO", 'code/a"b\\c')
    run_git("push", "-q", "origin", ":refs/for/master/one", "HEAD:refs/tags/v1", at=work)
    again = listener.of(3)[2]
    assert again["repository"] == 'code/a"b\\c' and again != pushed


def test_only_who_may_push_reads_the_hook(
    repositories: Repositories, tmp_path: Path, listener: PokeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, hook_file = repositories.hub / "code", repositories.hub / "code/hooks/headgate-poke"
    listener.open.set()
    ours = at.stat().st_gid
    theirs = next((group for group in (*os.getgroups(), 54321) if group != ours and os.geteuid() == 0), ours)
    os.chown(at, -1, theirs)
    with in_a_directory_without_settings(tmp_path, monkeypatch):
        for mode, wanted in ((0o755, 0o500), (0o775, 0o550)):
            at.chmod(mode)
            assert installed(tmp_path, listener.port, at).exit_code == 0
            found = hook_file.stat()
            assert found.st_mode & 0o777 == wanted and found.st_gid in (theirs, ours)
        assert found.st_gid == theirs, "of the group that pushes, not of who installs it"

        def refused(fd: int, uid: int, gid: int) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "fchown", refused)
        monkeypatch.setattr(os, "geteuid", lambda: 1)
        assert installed(tmp_path, listener.port, at).exit_code == 0
    assert hook_file.stat().st_mode & 0o777 == 0o500, "no group at all, rather than another one"


def test_files_in_a_repository_do_not_affect_the_installation_of_hooks(
    repositories: Repositories, tmp_path: Path, listener: PokeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, evil = repositories.hub / "code", tmp_path / "evil"
    listener.open.set()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (at / "hooks/.headgate-poke.new").symlink_to(precious)
    replace = Path.replace

    def replaced(self: Path, target: Path) -> Path:
        found = replace(self, target)
        if target.name == "headgate-poke":  # the owner of the directory intervenes
            found.unlink()
            found.write_text(f"touch {evil}\n")
        return found

    monkeypatch.setattr(Path, "replace", replaced)
    with in_a_directory_without_settings(tmp_path, monkeypatch):
        result = installed(tmp_path, listener.port, at)
    assert "Headgate accepted the test poke" in result.output, result.output
    assert precious.read_text() == "precious" and not evil.exists()


def test_a_push_neither_waits_for_the_poke_nor_fails_with_it(
    repositories: Repositories, tmp_path: Path, listener: PokeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, work = repositories.hub / "code", repositories.work("code")
    listener.open.set()
    with in_a_directory_without_settings(tmp_path, monkeypatch):
        installed(tmp_path, listener.port, at, "--page", "https://gate.example/t/x")
        listener.open.clear()
        run_git("commit", "-q", "--allow-empty", "-m", "Change nothing", at=work)
        pushed = subprocess.run(
            ["git", "push", "origin", "HEAD:refs/for/master/one"], cwd=work, capture_output=True, text=True, check=True
        )
        assert "Headgate: https://gate.example/t/x/status" in pushed.stderr
        assert len(listener.of(2)) == 2 and not listener.open.is_set()  # nobody has answered, and the push has ended
        listener.open.set()
        result = installed(tmp_path, 1, at)  # if nobody listens
    assert result.exit_code == 0 and "so Headgate sees pushes here only when it polls" in result.output
    monkeypatch.setenv("GL_REPO", "of\nno name")
    run_git("push", "-q", "origin", "HEAD:refs/for/master/two", at=work)
    (at / "hooks/headgate-poke").unlink()
    run_git("push", "-q", "origin", "HEAD:refs/for/master/three", at=work)
    refs = set(run_git("for-each-ref", "--format=%(refname)", at=at).split())
    assert {"refs/for/master/one", "refs/for/master/two", "refs/for/master/three"} <= refs


def test_errors_in_printing_or_installing_are_reported(repositories: Repositories, tmp_path: Path) -> None:
    for result, why in (
        (printed(tmp_path, "mine"), "[web] root is not the http or https URL of the pages"),
        (printed(tmp_path, "--url", "https://h", "other"), "there is no connection 'other' with the driver git"),
        (printed(tmp_path, "--url", "https://h", "mine", token=""), "has no webhook_token"),
        (printed(tmp_path, "--url", "https://h", "mine", token="short"), "webhook_token needs at least 16 characters"),
    ):
        assert result.exit_code and why in str(result.exception), result.output
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    result = CliRunner().invoke(hook, ["install", "--poke", str(other), str(repositories.hub / "code")])
    assert result.exit_code and "is not a poke hook; run `headgate hook poke CONNECTION`" in str(result.exception)
    assert not (repositories.hub / "code/hooks/headgate-poke").exists()
