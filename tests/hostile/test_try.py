"""Test a person who tries a job of a hostile change at home."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories
from tests.e2e.headgate import MAIN
from tests.integration.builds.world import World, greeter

from .arena import PIPELINES, TENANTS, UNIT
from .ordinary import play_as_ordinary_user

TREASURE = "treasure-of-whoever-tries"
SETTINGS = f"""
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection local]
baseurl = hub
[keystore]
password = {TREASURE}
[web]
token = {TREASURE}
[executor]
"""
JOB = """#!/bin/sh
grep -rsl {treasure} $(ls -d /* | grep -v -e '^/usr$' -e '^/proc$' -e '^/sys$') /proc/[0-9]*/environ \
    --exclude=harm --exclude-dir=.git --exclude-dir=lib --exclude-dir=include 2>/dev/null | sed 's/^/FOUND /'
for file in {files}; do
    (cat $file || ls $file/*) 2>/dev/null | sed "s:^:READ $file :"
    (echo planted >>$file/planted || echo planted >>$file) 2>/dev/null && echo "WROTE $file"
done
python3 -c '
import socket
for place in "{places}".split():
    try:
        with socket.create_connection(place.split(":"), timeout=3) as found:
            print("REACHED", place, found.recv(9))
    except OSError as error:
        print("MISSED", place, error)
try:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect("{agent}")
        print("REACHED the agent")
except OSError as error:
    print("MISSED", error)
'
kill -9 -1 2>/dev/null
echo END
"""


@pytest.mark.long
def test_a_tryjob_can_neither_read_nor_reach_anything_of_its_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    private = [home / ".ssh/id_ed25519", home / ".netrc", home / ".config/tokens", tmp_path / "state/token"]
    for file in private:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{TREASURE}\n")
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    for project in ("code/api", "code/lib", "other/app"):
        repositories.create(project, {"README": "read me\n"})
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    settings = tmp_path / "headgate.conf"
    settings.write_text(SETTINGS)
    beside = repositories.work("code/lib") / "unfinished"
    beside.write_text(f"{TREASURE}\n")
    with ExitStack() as stack:
        agent, port = stack.enter_context(socket.socket(socket.AF_UNIX)), stack.enter_context(greeter("::", 0))
        places, outside = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", socket.gethostname())], []
        if os.geteuid() == 0:
            world = stack.enter_context(World())
            outside = [f"{world.address}:{world.port}"]
            places += [f"{world.other}:{world.port}", *outside]
            settings.write_text(SETTINGS.replace("[web]\n", f"[web]\nroot = https://{world.other}\n"))
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        files = [*private, settings, beside, home, tmp_path / "state", repositories.work("code/api")]
        named = " ".join(map(str, files))
        script = JOB.format(treasure=TREASURE, files=named, places=" ".join(places), agent=tmp_path / "agent")
        own = "- job: {name: harm, run: harm}\n- project: {check: {jobs: [harm]}}\n"
        repositories.write("code/api", {"zuul.yaml": own, "harm": script})
        command = [sys.executable, "-c", MAIN, "try", "harm", "--config", str(settings), "--tenant", "example"]
        environment = {**os.environ, "HOME": str(home), "SSH_AUTH_SOCK": str(tmp_path / "agent")}
        tree = repositories.work("code/api")
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    lines = [line.partition(" | ")[2] for line in done.stdout.splitlines()]
    assert done.returncode == 0 and "END" in lines, done.stdout + done.stderr
    assert not [line for line in lines if line.startswith(("FOUND", "READ", "WROTE"))], done.stdout
    assert [line.split()[1] for line in lines if line.startswith("REACHED")] == outside, done.stdout
    assert len([line for line in lines if line.startswith("MISSED")]) == len(places) + 1 - len(outside)
    assert "without a sandbox" not in done.stderr and (tree / "harm").read_text() == script
    assert [file.read_text() for file in private] == [f"{TREASURE}\n"] * len(private)


@pytest.mark.long
def test_a_tryjob_of_an_ordinary_user_can_neither_read_nor_reach_anything_of_that_user() -> None:
    play_as_ordinary_user("test_try.py::test_a_tryjob_can_neither_read_nor_reach_anything_of_its_user")


@pytest.mark.long
def test_without_a_sandbox_a_warning_says_so(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    for project in ("code/api", "code/lib", "other/app"):
        repositories.create(project, {"README": "read me\n"})
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    for how, path, says in (
        ("none", os.environ["PATH"], "[executor] sandbox = none: the job can read and write everything that you can"),
        ("auto", str(_without_bubblewrap(tmp_path)), "Jobs run without a sandbox: the program bwrap is not installed"),
    ):
        (tmp_path / "headgate.conf").write_text(f"{SETTINGS}sandbox = {how}\n")
        command = [
            sys.executable,
            "-c",
            MAIN,
            "try",
            "unit",
            "--config",
            str(tmp_path / "headgate.conf"),
            "--tenant",
            "example",
        ]
        done = subprocess.run(
            command, cwd=repositories.work("code/api"), env={**os.environ, "PATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and says in done.stderr, done.stdout + done.stderr


def _without_bubblewrap(root: Path) -> Path:
    """Make a directory with links to all programs except one."""
    found = root / "programs"
    found.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            if program.name != "bwrap":
                (found / program.name).unlink(missing_ok=True)
                (found / program.name).symlink_to(program)
    return found
