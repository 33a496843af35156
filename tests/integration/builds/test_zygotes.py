"""Test playbooks that are copies of a process with Ansible loaded: they behave like new processes, whichever process
dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from headgate.adapters.ansible.versions import beside
from headgate.adapters.process.ansible import shared_config
from headgate.adapters.process.bounds.watch import Limiter
from headgate.adapters.process.cell import NO_COPIES
from headgate.adapters.process.processes import processes_of
from headgate.adapters.process.sandbox import Confined, Sandbox
from headgate.adapters.process.zygotes import pool
from headgate.adapters.process.zygotes.pool import FAILURES_MAX, Zygotes
from headgate.testing.clock import DEADLINE_S
from tests.e2e.ansible import fetched

from .bench import Bench, end_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who gives users to builds")

LOOK = """
import json, os, re, signal, sys, tempfile
from ansible import constants
from ansible.plugins import loader
from ansible.plugins.action import ActionBase

KEPT = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "SigIgn", "SigBlk", "NSpid")

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        known = constants.config.get_configuration_definitions()
        lines = open("/proc/self/status").read().splitlines()
        found = {
            "settings": {name: repr(getattr(constants, name)) for name in known},
            "loaders": {n: repr(one.config) for n, one in vars(loader).items() if isinstance(one, loader.PluginLoader)},
            "environment": dict(os.environ),
            "told": sorted(open(f"/proc/{os.getppid()}/environ").read().strip("\\0").split("\\0")),
            "words": open(f"/proc/{os.getppid()}/cmdline").read().strip("\\0").split("\\0")[1:],
            "name": open(f"/proc/{os.getppid()}/comm").read(),
            "argv": sys.argv, "path": sys.path, "python": [sys.executable, sys.dont_write_bytecode, sys.prefix],
            "status": [line for line in lines if line.startswith(KEPT) and not line.startswith("NSpid")],
            "limits": open("/proc/self/limits").read(),
            "fds": [os.readlink(f"/proc/{os.getppid()}/fd/{n}").split(":")[0] for n in (0, 1, 2)],
            "places": [os.getcwd(), os.readlink("/proc/self/root"), tempfile.gettempdir()],
            "signals": [re.sub(r"[^A-Za-z. ]", "", str(signal.getsignal(n))) for n in (2, 13, 15, 17)],
            "mounts": len(open("/proc/self/mountinfo").readlines()),
            "group": open("/proc/self/cgroup").read(),
            "nice": [os.nice(0), open("/proc/self/oom_score_adj").read()],
            "streams": [
                [one.encoding, one.errors, one.write_through, repr(one.buffer)]
                for one in (sys.__stdout__, sys.__stderr__)
            ],
            "mine": os.access(f"/proc/{os.getppid()}/fd", os.R_OK),
        }
        with open(os.path.join(os.environ["ZUUL_LOG_DIR"], "look.json"), "w") as file:
            json.dump(found, file)
        return {"changed": False}
"""
READS = """
import sys, yaml
from pathlib import Path
from headgate.adapters.process.zygotes import program
program.load(sys.stdin.read())
import ansible
from ansible.utils.collection_loader import _collection_finder as finder, _collection_meta as origin
finder._AnsibleCollectionFinder(paths=[])._install()
load, yaml.load = yaml.load, None
found = finder._get_collection_metadata("ansible.builtin")
yaml.load = load
own = Path(ansible.__file__).parent / "config/ansible_builtin_runtime.yml"
assert found["plugin_routing"] and found == origin._meta_yml_to_dict(own.read_bytes(), ())
assert finder._meta_yml_to_dict(b"a: 1", ("other.collection", "runtime.yml")) == {"a": "1"}
"""
LOOKS = "- hosts: localhost\n  gather_facts: false\n  tasks: [look: ]\n"
DEBUG = "- hosts: localhost\n  gather_facts: false\n  tasks: [debug: {msg: hello}]\n"
SLEEP = """
- hosts: localhost
  gather_facts: false
  tasks: [shell: "setsid sleep 300 & echo begun; trap '' TERM; sleep 300"]
"""


async def looked(bench: Bench, **job: Any) -> dict[str, Any]:
    """Return the properties that a playbook sees, without those that differ in each build."""
    bench.script("action_plugins/look.py", LOOK)
    outcome = await bench.build(run=(bench.script("play.yaml", LOOKS),), **job)
    assert outcome.result == "SUCCESS", bench.log
    text = json.dumps(bench.log_json("look.json"))
    text = text.replace(bench.id, "BUILD").replace(str(bench.runner.root.parent), "ROOT")
    text = re.sub(r"(HEADGATE_FAILING\W+)[0-9a-f]{32}", r"\1TOKEN", re.sub(r"(?<!\d)19\d{8}(?!\d)", "USER", text))
    text = re.sub(r"ansible-local-\w+", "LOCAL", text)
    found: dict[str, Any] = json.loads(re.sub(r"BUILD-\d+", "GROUP", text))
    return found


@pytest.mark.long
@pytest.mark.parametrize("version", ["", "9"])
async def test_a_copy_finds_itself_as_a_new_process_does(tmp_path: Path, version: str) -> None:
    job: dict[str, Any] = {"ansible_version": version, "ansible_is_named": True} if version else {}
    settings: dict[str, Any] = {}
    if version:
        (tmp_path / "locks").mkdir()
        settings["ansible"] = fetched(tmp_path / "locks")
    found = []
    for warm in (True, False):
        place = tmp_path / str(warm)
        place.mkdir()
        bench = Bench(place, "bwrap", warm_ansible=warm, **settings)
        found.append(await looked(bench, **job))
        assert bench.runner.zygotes.copies == int(warm)
    copy, new = found
    assert copy["settings"]["DEFAULT_ROLES_PATH"].count("BUILD"), "they are those of this playbook"
    for name in new:
        assert copy[name] == new[name], name


@pytest.mark.long
async def test_each_phase_of_a_build_is_a_copy_and_prints_the_same_as_a_new_process(tmp_path: Path) -> None:
    logs = []
    for warm in (True, False):
        place = tmp_path / str(warm)
        place.mkdir()
        bench = Bench(place, "bwrap", warm_ansible=warm)
        fails = "- hosts: localhost\n  tasks:\n    - command: echo one\n      become: true\n    - fail: {msg: x}\n"
        play, last = bench.script("play.yaml", DEBUG), bench.script("fails.yaml", fails)
        outcome = await bench.build(pre_run=(play,), run=(play, last), post_run=(play,))
        assert outcome.result == "FAILURE"
        assert bench.runner.zygotes.copies == (4 if warm else 0)
        logs.append([re.sub(r"took [\d.]+|\w{32}", "", line.partition(" | ")[2]) for line in bench.log.splitlines()])
    assert logs[0] == logs[1] and any("exit status 2" in line for line in logs[0])


@pytest.mark.long
@pytest.mark.parametrize("ended", ["cancel", "zygote", "supervisor", "sandbox"])
async def test_no_process_outlives_a_build_whichever_process_ends_first(tmp_path: Path, ended: str) -> None:
    bench, cancel = Bench(tmp_path, "bwrap"), asyncio.Event()
    building = bench.start(cancel, run=(bench.script("play.yaml", SLEEP),))
    await bench.says("localhost | begun")
    (zygote,) = map(psutil.Process, bench.runner.zygotes.pids)
    (supervisor,) = zygote.children()
    if ended == "zygote":
        zygote.kill()
        zygote.wait(DEADLINE_S)
        assert supervisor.is_running() and processes_of(bench.id), "the build goes on"
        cancel.set()
    elif ended == "supervisor":
        supervisor.kill()
    elif ended == "sandbox":
        next(child for child in supervisor.children() if child.name() == "bwrap").kill()
    else:
        cancel.set()
    async with asyncio.timeout(DEADLINE_S):
        outcome = await building
    assert outcome.result == ("FAILURE" if ended in ("supervisor", "sandbox") else "CANCELED"), bench.log
    assert end_of(bench.id) and not [p for p in psutil.pids() if _is_of(p, bench.id)]


def _is_of(pid: int, build: str) -> bool:
    try:
        return any(build in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


@pytest.mark.long
def test_the_end_of_the_executor_is_the_end_of_its_copies(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from tests.integration.builds.bench import Bench
async def main():
    bench = Bench(Path(sys.argv[1]), "bwrap")
    building = bench.start(run=(bench.script("play.yaml", sys.argv[2]),))
    await bench.says("localhost | begun")
    print(bench.id, *bench.runner.zygotes.pids, flush=True)
    await building
asyncio.run(main())
"""
    words = [sys.executable, "-c", program, str(tmp_path), SLEEP]
    executor = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert executor.stdout is not None
    with executor.stdout:
        build, pid = executor.stdout.readline().split()
        zygote = psutil.Process(int(pid))
        executor.kill()
        executor.wait()
    assert end_of(build)
    zygote.wait(DEADLINE_S)


@pytest.mark.long
async def test_builds_continue_after_a_zygote_was_killed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    play = bench.script("play.yaml", DEBUG)
    assert (await bench.build(run=(play,))).result == "SUCCESS"
    (first,) = bench.runner.zygotes.pids
    os.kill(first, 9)
    assert (await bench.build(run=(play, play))).result == "SUCCESS"
    assert first not in bench.runner.zygotes.pids and bench.runner.zygotes.copies == 3


@pytest.mark.long
async def test_a_copy_whose_sandbox_is_incomplete_runs_no_playbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a copy lacks the system call filter, the playbook is a new process, which has it."""
    made: Callable[..., Confined] = Sandbox.command
    monkeypatch.setattr(Sandbox, "command", lambda *a, **k: replace(made(*a, **k), filter=None))
    bench = Bench(tmp_path, "bwrap")
    found = await looked(bench)
    assert any(line.startswith("Seccomp:\t2") for line in found["status"])
    await looked(bench)
    assert bench.runner.zygotes.copies == 0
    messages = [record.getMessage() for record in caplog.records if "new processes" in record.getMessage()]
    assert len(messages) == 1 and "Seccomp" in messages[0], messages


@pytest.mark.long
async def test_without_users_of_their_own_playbooks_are_new_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, "none")
    for _ in range(2):
        assert (await bench.build(run=(bench.script("play.yaml", DEBUG),))).result == "SUCCESS"
    assert [record.getMessage() for record in caplog.records].count(NO_COPIES) == 1
    assert not bench.runner.zygotes.pids and not bench.runner.zygotes.copies


async def lent(zygotes: Zygotes, program: Path) -> int:
    async with zygotes.lent(str(program), asyncio.Event(), DEADLINE_S) as zygote:
        return zygote.pid if zygote else 0


@pytest.mark.long
async def test_another_installation_is_another_zygote(tmp_path: Path) -> None:
    program, limiter = tmp_path / "ansible-playbook", Limiter()
    found = beside()
    assert found is not None
    program.write_text(Path(found).read_text())
    zygotes = Zygotes(limiter, shared_config())
    try:
        first = await lent(zygotes, program)
        assert first and await lent(zygotes, program) == first
        program.write_text(program.read_text() + "\n# newer\n")
        second = await lent(zygotes, program)
        assert second not in (0, first) and not psutil.pid_exists(first)
    finally:
        await zygotes.close()
        limiter.close()
    assert not psutil.pid_exists(second), "none is left"


async def test_an_ansible_that_cannot_be_loaded_is_given_up_until_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, limiter = tmp_path / "ansible-playbook", Limiter()
    program.write_text("#!/usr/bin/env python3\n")
    zygotes = Zygotes(limiter, shared_config())
    try:
        for _ in range(FAILURES_MAX + 1):
            assert await lent(zygotes, program) == 0
        assert len(caplog.records) == 1 and "does not name its Python" in caplog.text
        found = beside()
        assert found is not None
        program.write_text(Path(found).read_text())
        assert await lent(zygotes, program)
    finally:
        await zygotes.close()
        limiter.close()


async def test_an_ansible_that_could_not_be_loaded_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, limiter = Path(beside() or ""), Limiter()
    zygotes = Zygotes(limiter, shared_config())
    try:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(pool, "BEGIN_TIMEOUT_S", 0.0)  # as when builds use all processors
            for _ in range(FAILURES_MAX):
                assert await lent(zygotes, program) == 0
        assert await lent(zygotes, program) == 0, "not at once"
        monkeypatch.setattr(pool, "AGAIN_S", 0.0)
        assert await lent(zygotes, program)
    finally:
        await zygotes.close()
        limiter.close()


def test_a_copy_parses_the_metadata_of_other_collections_but_not_those_of_ansible_itself() -> None:
    command = [sys.executable, "-c", READS]
    done = subprocess.run(command, input=shared_config(), capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
