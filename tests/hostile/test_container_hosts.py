"""Test playbooks whose host is a container with a hostile image, commands or playbooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.adapters.ansible.versions import Environments
from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.containers.box import HOST_NAME
from headgate.testing.servers.images import shell
from tests.e2e.ansible import fetched, with_posix
from tests.integration.builds.bench import Bench
from tests.integration.builds.imaged import Images, fetched_images, images

from .test_containers import ATTACK, SECRET, SOUGHT

__all__ = ["fetched_images", "images"]
RAW = "- hosts: all\n  gather_facts: false\n  tasks:\n"


def raws(*commands: str) -> str:
    return RAW + "".join(f"    - raw: {json.dumps(command)}\n" for command in commands)


def reached(log: str) -> str:
    return "\n".join(line for line in log.splitlines() if "REACHED" in line)


WATCH = """
cat > /watch <<'END'
while [ ! -e /stop ]; do
    for p in /proc/[0-9]*; do
        for there in root cwd; do
            if [ -e $p/$there/PRIVATE ]; then echo REACHED $there of $(cat $p/comm) >> /seen; fi
        done
        for fd in $p/fd/*; do
            if [ -e $fd/cgroup.procs ] || [ -e $fd/PRIVATE ]; then echo REACHED $fd >> /seen; fi
            case $(busybox readlink $fd) in socket:*) echo REACHED $fd, a socket >> /seen;; esac
        done
    done
done
END
busybox nohup sh /watch > /dev/null 2>&1 & echo WATCHES
"""


@pytest.mark.long
async def test_no_command_of_a_playbook_reaches_the_machine_from_the_container(tmp_path: Path, images: Images) -> None:
    own = tmp_path / "own"
    own.write_text(SECRET)
    rooted = shell(rooted=(0o4755, Path("/bin/busybox").read_bytes()))
    image = images.registry.put("team/evil", {**rooted, "run/headgate-container/commands": b"\0"})
    bench = Bench(tmp_path, "container", images=images.supply)
    places = [own, images.supply.place / "store", "/usr/bin/python3", "/dev/vda", "/dev/mem", "/run/headgate-agent"]
    script = ATTACK.replace("SOUGHT", SOUGHT).replace("PLACES", " ".join(map(str, places))).replace("PRIVATE", str(own))
    play = raws(WATCH.replace("PRIVATE", str(own)), script, *["true"] * 20, "touch /stop; cat /seen; echo ENDS")
    trusted = replace(bench.script("post.yaml", raws(script)), trusted=True)
    outcome = await bench.build(run=(bench.script("run.yaml", play),), post_run=(trusted,), image=image)
    assert outcome.result == "SUCCESS" and bench.log.count("| DONE") == 2 and "| ENDS" in bench.log, bench.log
    assert f"{HOST_NAME} | WATCHES" in bench.log and not reached(bench.log), reached(bench.log)


BAD = """
- hosts: localhost
  gather_facts: false
  tasks:
    - copy:
        dest: "{{ zuul.executor.work_root }}/attack.py"
        content: |
          import json, socket, struct
          path = "/run/headgate-container/commands"
          def sent(*pieces):
              one = socket.socket(socket.AF_UNIX)
              one.settimeout(10)
              one.connect(path)
              try:
                  for piece in pieces:
                      one.sendall(piece)
                  said = b""
                  while piece := one.recv(100_000):
                      said += piece
                  return said
              except OSError as error:
                  return repr(error).encode()
          def asked(**said):
              text = json.dumps(said).encode()
              return struct.pack("!cI", b"c", len(text)) + text
          print("huge", sent(struct.pack("!cI", b"c", 0xFFFFFFFF)))
          print("deep", sent(struct.pack("!cI", b"c", 200_000), b"[" * 200_000)[:40])
          print("other", sent(struct.pack("!cI", b"i", 2), b"{}"))
          print("list", sent(asked(command=["id"], user="root")))
          print("nul", sent(asked(command="echo a\\0b", user="root")))
          print("nobody", sent(asked(command="id", user="root:x:0")))
          print("path", sent(asked(command="id", user="../../root")))
          print("options", sent(asked(command="id -u", user="root", directory="/", capabilities=-1, environment={})))
          kept = [socket.socket(socket.AF_UNIX) for _ in range(20)]
          for one in kept:
              one.connect(path)
          try:
              socket.send_fds(kept[0], [asked(command="ls -l /proc/self/fd | wc -l", user="root")], [0, 1, 2])
              print("descriptors", kept[0].recv(1000)[-12:])
          except OSError as error:
              print("descriptors", error)
    - command: python3 {{ zuul.executor.work_root }}/attack.py
    - shell: "rm /run/headgate-container/commands; touch /run/headgate-container/x; ls -a /run/headgate-container"
      ignore_errors: true
- hosts: all
  gather_facts: false
  tasks: [{raw: "echo still $(id -u); ls -d /run/headgate-container || echo none here"}]
"""


@pytest.mark.long
async def test_malformed_requests_of_a_playbook_at_the_socket_stop_nobody(tmp_path: Path, images: Images) -> None:
    image = images.registry.put("team/tools", shell())
    bench = Bench(tmp_path, "container", images=images.supply)
    program = bench.script("program", "ls /run/headgate-container/commands || echo none for programs")
    outcome = await bench.build(run=(bench.script("run.yaml", BAD), program), image=image)
    assert outcome.result == "SUCCESS", bench.log
    for name, why in {
        "huge": "a frame is too large", "other": "a command and a user", "list": "a command and a user",
        "nul": "a command and a user", "nobody": "has no user root:x:0", "path": "has no user ../../root",
        "options": "x020", "deep": "b'x",
    }.items():  # fmt: skip
        line = next(line for line in bench.log.splitlines() if f"| localhost | {name} " in line)
        assert why in line, line
    assert f"{HOST_NAME} | still 0\n" in bench.log and f"{HOST_NAME} | none here" in bench.log
    assert "| none for programs" in bench.log and "Read-only file system" in bench.log


SHELLS = {
    "silent": ('case "$2" in *held*) exec busybox sleep 600;; esac', "TIMED_OUT", "its time limit"),
    "absent": ('case "$2" in *held*) exit 3;; esac', "RETRY_LIMIT", "a host could not be reached"),
    "loud": ('case "$2" in *WORK*) exec busybox cat /dev/zero;; esac', "FAILURE", "exit status 2"),
    "large": (
        'case "$2" in *WORK*) for n in 1 2 3; do busybox dd if=/dev/zero of=/large$n bs=1M count=40; done;'
        " exec busybox sleep 600;; esac",  # no single file is too large, and it ends by the limit or not at all
        "FAILURE",
        "disk limit",
    ),
}


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SHELLS)
async def test_a_shell_that_lies_harms_its_own_job_alone(name: str, tmp_path: Path, images: Images) -> None:
    text, result, why = SHELLS[name]
    lying = f'#!/bin/busybox sh\n{text}\nexec busybox sh "$@"\n'.encode()
    image = images.registry.put(f"team/{name}", {**shell(), "bin/sh": lying})
    bench = Bench(tmp_path, "container", images=images.supply, bounds=ProcessBounds(disk_max_bytes=50_000_000))
    play = bench.script("run.yaml", raws("echo WORK"))
    outcome = await bench.build(run=(play,), image=image, attempts_max=1, timeout_s=5 if name == "silent" else None)
    assert outcome.result == result and why in outcome.error, (outcome, bench.log)
    assert not list((tmp_path / "builds").iterdir())
    if name == "loud":
        assert "printed more than 100 MB" in bench.log


LIES = {
    "changed": False, "ping": "pong", "content": "bGllcw==", "encoding": "base64",
    "stat": {"exists": True, "isdir": False},
    "source": "../../../../../../OUT/written", "dest": "OUT/written", "remote_src": "OUT/written", "checksum": "1",
    "ansible_facts": {
        "ansible_connection": "local", "connection": "local", "ansible_host": "localhost",
        "ansible_python_interpreter": "/usr/bin/touch", "discovered_interpreter_python": "/usr/bin/touch",
        "ansible_become_exe": "/usr/bin/touch", "ansible_system": "{{ lookup('pipe', 'touch OUT/templated') }}",
    },
}  # fmt: skip
BELIEVES = """
- hosts: all
  tasks:
    - {ping: , ignore_errors: true}
    - {debug: {msg: "{{ ansible_facts.system | default('-') }}"}, ignore_errors: true}
    - {fetch: {src: /etc/passwd, dest: "{{ zuul.executor.log_root }}/", flat: true}, ignore_errors: true}
    - {fetch: {src: ../../OUT/private, dest: "{{ zuul.executor.log_root }}/f/"}, ignore_errors: true}
    - {fetch: {src: /leak, dest: "{{ zuul.executor.log_root }}/leak", flat: true}, ignore_errors: true}
    - {raw: "ls -d OUT || echo in the container"}
"""


@pytest.mark.long
async def test_a_python_that_lies_is_not_believed_by_a_trusted_playbook(tmp_path: Path, images: Images) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    (out / "private").write_text(SECRET)
    text = json.dumps(LIES).replace("OUT", str(out))
    python = f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n".encode()
    image = images.registry.put("team/liar", {**shell(), "usr/bin/python3": python, "leak": str(out / "private")})
    bench = Bench(tmp_path, "container", images=images.supply)
    post = bench.script("post.yaml", BELIEVES.replace("OUT", str(out)))
    outcome = await bench.build(
        run=(bench.script("run", "true"),), post_run=(replace(post, trusted=True),), image=image
    )
    assert f"{HOST_NAME} | in the container" in bench.log, (outcome, bench.log)
    assert [file.name for file in out.iterdir()] == ["private"], bench.log
    logs = bench.runner.log_root / bench.id
    assert not any(SECRET in file.read_text() for file in logs.rglob("*") if file.is_file())


PULLS = """
- hosts: all
  gather_facts: false
  tasks:
    - synchronize: {src: /srv/logs/, dest: "{{ zuul.executor.log_root }}/pulled/", mode: pull}
      ignore_errors: true
"""
RSYNC = """#!/bin/sh
mkdir -p /evil/sub && ln -sfn OUT /evil/out && ln -sfn OUT/private /evil/leak && echo hi > /evil/sub/file
for one; do
    case $one in /srv/logs/) one=/evil/;; esac
    said="$said $one"
done
exec /usr/bin/rsync-real $said
"""


@pytest.fixture
def posix(tmp_path: Path) -> Environments:
    (tmp_path / "locks").mkdir()
    return with_posix(fetched(tmp_path / "locks"))


@pytest.mark.long
async def test_links_that_come_with_pulled_files_lead_nowhere(
    tmp_path: Path, images: Images, posix: Environments
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    (out / "private").write_text(SECRET)
    (out / "private").chmod(0o600)
    setup = (
        f"cp /usr/bin/rsync /usr/bin/rsync-real; cat > /usr/bin/rsync <<'END'\n{RSYNC.replace('OUT', str(out))}END\n"
    )
    bench = Bench(tmp_path, "container", images=images.supply, ansible=posix)
    post = replace(bench.script("post.yaml", PULLS), trusted=True)
    outcome = await bench.build(
        run=(bench.script("run", setup),), post_run=(post,), image=images.system, ansible_version="9"
    )
    pulled = bench.runner.log_root / bench.id / "pulled"
    assert outcome.result == "SUCCESS" and [file.name for file in out.iterdir()] == ["private"], bench.log
    assert (pulled / "sub/file").exists(), bench.log
    assert not any(SECRET in file.read_text() for file in pulled.rglob("*") if file.is_file())
