"""Test playbooks that attack the process that they are a copy of, and so other builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.builds.bench import Bench, end_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has a Python with Ansible here")

PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks: [{task}: ]\n"
POISON = """
import os, sys, atexit, random, signal
from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

constants.DEFAULT_TIMEOUT = 4711
sys.path.insert(0, "/tmp/poison")
sys.modules["poisoned"] = sys
os.environ["POISONED"] = "1"
Display.display = lambda self, *words, **more: os.write(1, b"poisoned\\n")
random.seed(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.umask(0)

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        for pid in (os.getppid(), 1):
            for path in (f"/proc/{pid}/mem", f"/proc/{pid}/exe", "/proc/self/exe"):
                try:
                    os.write(os.open(path, os.O_WRONLY), b"poison")
                except OSError:
                    continue
        os.kill(-1, 9)
        os._exit(0)
"""
LOOK = """
import ctypes, gc, json, multiprocessing.process, os, random, re, sys, uuid
from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils import vars as ids

def is_shared(line):
    return " rw-s " in line and "/dev/shm/" not in line and "zero" not in line

def may_write(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
        return True
    except OSError:
        return False

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        mine = os.getppid()
        paths = ("/proc/self/exe", f"/proc/{mine}/exe", sys.executable, constants.__file__, "/etc/passwd")
        texts = set()
        for found in gc.get_objects():
            if isinstance(found, (dict, list, tuple)):
                held = found.values() if isinstance(found, dict) else found
                texts |= {repr(one) for one in held if isinstance(one, (str, bytes))}
        key = multiprocessing.process.current_process().authkey.hex()
        told = {
            "chance": [ids.random_int, ids.node_mac, key, random.random(), uuid.uuid4().hex],
            "written": [path for path in paths if may_write(path)], "timeout": constants.DEFAULT_TIMEOUT,
            "poison": [name for name in (*sys.path, *sys.modules, *os.environ) if "poison" in name.lower()],
            "processes": sorted(open(f"/proc/{n}/comm").read().strip() for n in os.listdir("/proc") if n.isdigit()),
            "shared": [line for line in open(f"/proc/{mine}/maps") if is_shared(line)],
            "open": {n: os.readlink(f"/proc/{mine}/fd/{n}") for n in os.listdir(f"/proc/{mine}/fd")},
            "umask": os.umask(0o22), "traced": ctypes.CDLL(None).ptrace(16, 1, 0, 0),
            "kept": sorted(text for text in texts if re.search("OTHER-[0-9]", text))[:5],
        }
        with open(os.path.join(os.environ["ZUUL_LOG_DIR"], "look.json"), "w") as file:
            json.dump(told, file)
        return {"changed": False}
"""


async def played(bench: Bench, task: str, text: str, **job: Any) -> dict[str, Any]:
    bench.script(f"action_plugins/{task}.py", text)
    outcome = await bench.build(run=(bench.script(f"{task}.yaml", PLAY.format(task=task)),), **job)
    if task == "poison":
        assert outcome.result == "FAILURE", bench.log
        return {}
    assert outcome.result == "SUCCESS", bench.log
    found: dict[str, Any] = bench.log_json("look.json")
    return found


@pytest.mark.long
async def test_a_playbook_changes_nothing_in_the_process_that_the_next_one_is_a_copy_of(tmp_path: Path) -> None:
    """It changes Ansible in memory, writes where it can, draws random numbers and kills everything that it may."""
    bench = Bench(tmp_path, "bwrap")
    first = await played(bench, "look", LOOK, vars={"kept": "OTHER-1"})
    (zygote,) = bench.runner.zygotes.pids
    begun = psutil.Process(zygote).create_time()
    neighbour = bench.start(run=(bench.script("wait.yaml", WAIT),))
    await bench.says("localhost | waiting")
    place = bench.work
    await played(bench, "poison", POISON, vars={"kept": "OTHER-2"})
    assert end_of(bench.id)
    second = await played(bench, "look", LOOK)
    (place / "logs/go").touch()
    assert (await neighbour).result == "SUCCESS", "it had a copy, too"
    (still,) = bench.runner.zygotes.pids
    assert still == zygote and psutil.Process(zygote).create_time() == begun, "all are copies of one"
    for found in (first, second):
        assert not found["written"] and not found["poison"] and not found["shared"] and found["traced"] == -1, found
        assert found["timeout"] == 30 and found["umask"] == 0o22
        assert set(found["processes"]) <= {"bwrap", "sh", "ansible-playboo"}, found["processes"]
        kinds = {name: target.partition(":")[0] for name, target in found["open"].items() if int(name) < 3}
        assert kinds == {"0": "/dev/null", "1": "pipe", "2": "pipe"}
        assert not [target for target in found["open"].values() if target.startswith("socket")], found["open"]
    assert not set(first["chance"]) & set(second["chance"]), "nothing that is by chance is that of another build"
    assert first["kept"] and not second["kept"], "nothing of the builds before"


WAIT = """
- hosts: localhost
  gather_facts: false
  tasks: [shell: "echo waiting; until test -e $ZUUL_LOG_DIR/go; do sleep 0.1; done"]
"""


@pytest.mark.long
async def test_a_zygote_contains_no_data_of_builds_and_no_settings_of_them(tmp_path: Path) -> None:
    """Between two builds: environment, directory, descriptors, memory and modules are the original ones."""
    bench = Bench(tmp_path, "bwrap")
    bench.script("ansible.cfg", "[defaults]\ncallback_plugins = /tmp/chosen\n")
    play = bench.script("play.yaml", "- hosts: localhost\n  tasks: [debug: {var: kept}]\n")
    outcome = await bench.build(run=(play,), vars={"kept": "CHOSEN-word"})
    assert outcome.result == "SUCCESS" and "CHOSEN-word" in bench.log
    (pid,) = bench.runner.zygotes.pids
    zygote = psutil.Process(pid)
    assert set(zygote.environ()) == {"PATH", "LANG", "HEADGATE_ROOM"} and zygote.cwd() == "/"
    targets = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    kinds = sorted(target.partition(":")[0] for target in targets)
    assert kinds == ["/dev/null", "/dev/null", "/dev/null", "pipe", "pipe", "socket"], kinds
    assert zygote.num_threads() == 1 and not zygote.children()
    found = contents(pid)
    wanted = (bench.id.encode(), b"CHOSEN-word", b"/tmp/chosen", str(bench.work).encode())
    assert b"HEADGATE_ROOM" in found and not [word for word in wanted if word in found]


DRAWS = """
import ctypes, os, ssl, tempfile
import multiprocessing.synchronize as semaphores
from headgate.adapters.process.zygotes import program

libc = ctypes.CDLL(None, use_errno=True)

def first_of_a_namespace(run):
    assert libc.unshare(0x20000000) == 0
    pid = os.fork()
    if pid == 0:
        run()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def draw():
    return next(tempfile._get_candidate_names()), next(semaphores.SemLock._rand), ssl.RAND_bytes(8).hex()

def copy():
    assert os.getpid() == 1
    if anew:
        program._renew_random_sources()
    os.write(1, (" ".join(draw()) + "\\n").encode())

def zygote():
    global anew
    draw()
    for anew in (False, True):
        for _ in range(2):
            pid = os.fork()  # one process can make one namespace
            if pid == 0:
                first_of_a_namespace(copy)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0

first_of_a_namespace(zygote)
"""


def test_copies_with_equal_process_ids_draw_different_random_numbers() -> None:
    """In a container, process ids are as small as in the sandbox of a build."""
    done = subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True, check=True)
    one, same, other, another = (line.split() for line in done.stdout.splitlines())
    assert one[:2] == same[:2], "what they draw is the same unless something is done"
    assert not {*one, *same, *other} & {*another} and not {*one, *same} & {*other}


def contents(pid: int) -> bytes:
    """Return all writable memory of a process."""
    pieces = list[bytes]()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for place, rights in (line.split()[:2] for line in maps):
            if rights.startswith("rw"):
                begin, end = (int(number, 16) for number in place.split("-"))
                memory.seek(begin)
                pieces.append(memory.read(end - begin))
    return b"".join(pieces)
