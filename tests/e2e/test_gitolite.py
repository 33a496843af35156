"""Test plain git behind gitolite and a real sshd, with the rules and hooks of the how-to page."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.hook import hook
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.program import free_ports
from headgate.testing.servers.sshd import Lab, program
from tests.waiting import wait_for

from .headgate import Headgate

PAGE = (Path(__file__).parents[2] / "docs/how-to/use-plain-git.md").read_text()
LAND_S = 180.0
PEOPLE = ("headgate", "ada", "grace", "eve")
PIPELINES = """
- pipeline:
    name: check
    manager: independent
    trigger: {mine: [{event: change-proposed}]}
    success: {mine: {}}
    failure: {mine: {}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {mine: [{event: change-approved}]}
    require: {mine: {approvals: {count: 1, not-author: true}, veto: false}}
    success: {mine: {land: true}}
    failure: {mine: {}}
- job: {name: base, parent: null, abstract: true}
- job: {name: unit, run: jobs/unit}
- project:
    name: code/api
    check: {jobs: [unit]}
    gate: {jobs: [unit]}
"""
TENANTS = """
- tenant:
    name: example
    source: {mine: {config-projects: [config], untrusted-projects: [code/api]}}
"""

pytestmark = pytest.mark.skipif(
    shutil.which("gitolite") is None or program() is None, reason="needs Debian's packages gitolite3 and openssh-server"
)


@dataclass(slots=True)
class Gitolite:
    """Run a server of this user, with a separate home."""

    root: Path
    port: int = 0

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    def run(self, *words: str) -> None:
        """Act as the server's administrator, on its machine."""
        environment = {**os.environ, "HOME": str(self.home)}
        subprocess.run(["gitolite", *words], cwd=self.home, env=environment, capture_output=True, check=True)

    def git(self, who: str, *words: str, at: Path) -> str:
        """Act as a remote user, over ssh. Raise RuntimeError with the server's message."""
        hosts = self.root / "hosts"
        ssh = f"ssh -F none -o IdentitiesOnly=yes -o UserKnownHostsFile={hosts} -i {self.root / who}"
        return run_git("-c", f"core.sshCommand={ssh}", *words, at=at)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gitolite]:
    found, lab = Gitolite(tmp_path), Lab(tmp_path / "ssh")
    found.home.mkdir()
    for who in PEOPLE:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", str(tmp_path / who)], check=True
        )
    found.run("setup", "-pk", str(tmp_path / "headgate.pub"))
    rc = found.home / ".gitolite.rc"
    text = rc.read_text().replace("GIT_CONFIG_KEYS                 =>  '',", "")
    begin = "%RC = (\n"
    assert begin in text
    for line in re.findall(r"`((?:LOCAL_CODE|GIT_CONFIG_KEYS) => .*?)`", PAGE):
        text = text.replace(begin, f"{begin}    {line}\n")
    rc.write_text(text)
    options = {"AuthorizedKeysFile": str(found.home / ".ssh/authorized_keys"), "SetEnv": f"HOME={found.home}"}
    with lab.server(**options) as found.port:
        (tmp_path / "hosts").write_text(f"[127.0.0.1]:{found.port} {lab.host_key}\n")
        yield found


def configured(server: Gitolite, work: Path) -> None:
    """Use the rules of the how-to page, pushed as gitolite requires."""
    rules, names = re.findall(r"^```\n((?:@gated|repo @gated).*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert names.startswith("repo") and "VREF" in names
    server.git("headgate", "clone", "-q", f"{server.url}/gitolite-admin", str(work), at=server.root)
    for who in PEOPLE[1:]:
        shutil.copy(server.root / f"{who}.pub", work / "keydir" / f"{who}.pub")
    admin = "repo gitolite-admin\n    RW+ = headgate\n"
    (work / "conf/gitolite.conf").write_text(admin + rules + names)
    run_git("add", "-A", at=work)
    run_git("commit", "-q", "-m", "Rules", at=work)
    server.git("headgate", "push", "-q", "origin", "HEAD", at=work)


def begun(server: Gitolite, name: str, files: dict[str, str]) -> Path:
    """Make a clone whose repository has these files."""
    work = server.root / "work" / name
    work.mkdir(parents=True)
    run_git("init", "-q", "-b", "master", at=work)
    run_git("remote", "add", "origin", f"{server.url}/{name}", at=work)
    for path, text in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
        (work / path).chmod(0o755 if text.startswith("#!") else 0o644)
    run_git("add", "-A", at=work)
    run_git("commit", "-q", "-m", "Begin", at=work)
    server.git("headgate", "push", "-q", "origin", "master", at=work)
    return work


def hooked(server: Gitolite, settings: Path, page: str) -> None:
    """Install the hooks, as the how-to page prints them."""
    local = server.home / "local"
    for place, *words in (
        ("VREF/headgate",),
        ("hooks/common/post-receive", "post-receive", "--page", page),
        ("hooks/common/headgate-poke", "poke", "--config", str(settings), "mine"),
    ):
        file = local / place
        file.parent.mkdir(parents=True, exist_ok=True)
        done = CliRunner().invoke(hook, words)
        assert done.exit_code == 0, done.output
        file.write_text(done.stdout)
        file.chmod(0o700)


@pytest.mark.long
def test_a_change_proposed_and_approved_behind_gitolite_lands(server: Gitolite) -> None:
    (port,) = free_ports(1)
    connection = f"""[connection mine]
driver = git
baseurl = {server.url}
canonical_hostname = git.example
sshkey = headgate
known_hosts = hosts
poll_delay = 7200
webhook_token = 0123456789abcdef
approvals = bound
"""
    web = f"[web]\nport = {port}\nroot = http://127.0.0.1:{port}\n"
    settings = f"[scheduler]\ntenant_config = tenants.yaml\nstate_dir = state\n{connection}{web}"
    gate = Headgate(Repositories(server.root), TENANTS, settings=settings)
    hooked(server, server.root / "headgate.conf", "https://gate.example/t/example")
    configured(server, server.root / "admin")
    begun(server, "config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\ntest ! -e BROKEN\n"})
    work = begun(server, "code/api", {"README": "read me\n"})
    gate.start()
    try:
        wait_for("the tenant is there", lambda: gate.get("/api/tenant/example/status")["state"], LAND_S)
        play(server, work)
    finally:
        gate.stop()


def play(server: Gitolite, work: Path) -> None:
    """The next poll is two hours away."""
    bare = server.home / "repositories/code/api.git"

    def there(ref: str) -> str:
        return run_git("for-each-ref", "--format=%(objectname)", ref, at=bare)

    def push(who: str, *refs: str) -> str:
        return server.git(who, "push", "origin", *refs, at=work)

    def wait_for_note(commit: str, text: str) -> None:
        def noted() -> bool:
            try:
                return text in run_git("notes", "--ref=headgate", "show", commit, at=bare)
            except RuntimeError:
                return False

        wait_for(f"{text} of {commit}", noted, LAND_S)

    (work / "new").write_text("x\n")
    run_git("add", "-A", at=work)
    run_git("commit", "-q", "-m", "Add a file", at=work)
    commit = run_git("rev-parse", "HEAD", at=work)
    for who, refs, why in (
        ("ada", "HEAD:refs/heads/master", "DENIED by fallthru"),
        ("ada", "HEAD:refs/for/master", "DENIED by refs/"),
        ("eve", "HEAD:refs/for/mastr/one", "no such branch, or no topic"),
        ("eve", "HEAD:refs/approvals/eve/master/one", "DENIED by fallthru"),
        ("ada", "HEAD:refs/approvals/grace/master/one", "DENIED by fallthru"),
        ("ada", "HEAD:refs/proposers/grace/master/one", "DENIED by fallthru"),
    ):
        with pytest.raises(RuntimeError, match=why):
            push(who, refs)
    push("ada", "HEAD:refs/for/master/one")
    assert there("refs/proposers/ada/master/one") == commit
    wait_for_note(commit, "Headgate (check):")
    push("ada", "HEAD:refs/approvals/ada/master/one")  # it is her own
    push("grace", "HEAD:refs/vetoes/grace/master/one")
    push("grace", "HEAD:refs/approvals/grace/master/one")
    push("grace", ":refs/vetoes/grace/master/one")
    wait_for_note(commit, "Landed on master")
    assert there("refs/heads/master") != there("refs/for") == ""
    assert "new" in run_git("ls-tree", "--name-only", "master", at=bare).split()
    assert "grace" in run_git("notes", "--ref=headgate", "show", commit, at=bare)
    wait_for("who proposed what landed is forgotten", lambda: not there("refs/proposers"))
