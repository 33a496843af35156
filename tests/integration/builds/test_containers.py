"""Test programs of jobs in containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.containers.store import NUMBERS, ImageSupply
from headgate.testing.servers.images import ImageRegistry, shell

from .bench import Bench, end_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has user namespaces for containers")
LOOPBACK = ("127.0.0.1:*",)
"""The images in the local registry."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def registry(place: Path) -> Iterator[ImageRegistry]:
    found = ImageRegistry(place)
    before = os.environ.get("CONTAINERS_REGISTRIES_CONF")
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(found.settings)
    yield found
    found.close()
    os.environ.pop("CONTAINERS_REGISTRIES_CONF")
    if before is not None:
        os.environ["CONTAINERS_REGISTRIES_CONF"] = before


@pytest.fixture(scope="module")
def tools(registry: ImageRegistry) -> str:
    """Return the name of an image with two layers."""
    return registry.put("team/tools", shell(), {"marked": (0o644, b"by the layer above\n")}, Env=["IN_THE_IMAGE=yes"])


@pytest.fixture
def podman_of_root() -> Iterator[None]:
    """Root has used podman on this machine, and nobody else may read its files."""
    there = Path("/var/lib/containers")
    made = not there.exists()
    if made:
        there.mkdir(0o700)
    yield
    if made:
        with contextlib.suppress(OSError):
            there.rmdir()


WHO = """
echo I am $(id -u) of $(cat /proc/self/uid_map), $IN_THE_IMAGE, $(cat /marked)
grep -E '^(CapEff|NoNewPrivs)' /proc/self/status
touch /in-the-root $HOME/home /tmp/x /dev/shm/x made && echo writes anywhere
echo told $ZUUL_PROJECT of $(cat README), PATH $PATH
test -e /usr/bin/python3 || echo without the programs of the machine
"""


@pytest.mark.long
@pytest.mark.usefixtures("podman_of_root")
async def test_a_program_runs_in_the_image_that_its_job_names(place: Path, tmp_path: Path, tools: str) -> None:
    bench = Bench(tmp_path, "container", images=ImageSupply(place / "kept", LOOPBACK, 10**9))
    first, second = bench.script("run", WHO), bench.script("post", "ls -d /in-the-root && cat made")
    trusted = replace(bench.script("trusted", "echo $(id -u) has made; ls -d /usr/bin/python3"), trusted=True)
    outcome = await bench.build(run=(first,), post_run=(second, trusted), image=tools)
    assert outcome.result == "SUCCESS", bench.log
    assert re.search(rf"I am 0 of +0 +{NUMBERS.first} +{NUMBERS.count}, yes, by the layer above", bench.log), bench.log
    assert "| CapEff:\t00000000800400fb" in bench.log and "| NoNewPrivs:\t1" in bench.log
    assert "| writes anywhere" in bench.log and "told h/code of x, PATH /usr/local/sbin:" in bench.log
    assert "| without the programs of the machine" in bench.log and "| /usr/bin/python3" in bench.log
    assert re.search(r"The image 127.0.0.1:\d+/team/tools:1 is [0-9a-f]{12}, sha256:[0-9a-f]{64}", bench.log)
    assert re.fullmatch(r"127.0.0.1:\d+/team/tools:1@sha256:[0-9a-f]{64}", outcome.image), outcome.image
    assert (await bench.build(run=(bench.script("run", "ls /in-the-root"),), image=tools)).result == "FAILURE"
    assert "FETCHING" not in bench.log, "it is here already, and nothing of the build before is in it"


@pytest.mark.long
async def test_settings_of_an_image_other_than_its_environment_have_no_effect(
    place: Path, tmp_path: Path, registry: ImageRegistry
) -> None:
    settings = {"Entrypoint": ["/bin/echo"], "Cmd": ["no"], "User": "1000:1000", "WorkingDir": "/elsewhere"}
    variables = ["HOME=/elsewhere", "ZUUL_PROJECT=other", "PATH=/bin", "LD_PRELOAD=/elsewhere.so", "no name=x"]
    name = registry.put("team/odd", shell(), Env=variables, Volumes={"/host": {}}, **settings)
    bench = Bench(tmp_path, "container", images=ImageSupply(place / "kept", LOOPBACK, 10**9, name))
    run = bench.script(
        "run", "echo $(id -u) $ZUUL_PROJECT at $PATH; cat README; test $HOME != /elsewhere && ! ls /host"
    )
    assert (await bench.build(run=(run,))).result == "SUCCESS", bench.log
    assert "| 0 h/code at /bin" in bench.log and "| x" in bench.log


@pytest.mark.long
async def test_an_image_that_cannot_be_fetched_fails_the_build_that_needs_it(
    place: Path, tmp_path: Path, registry: ImageRegistry, tools: str
) -> None:
    other = registry.put("team/other", shell(), architecture="s390x")
    bare = registry.put("team/bare", {"nothing": (0o644, b"")})
    huge = registry.put("team/huge", shell(much=os.urandom(4_000_000)), {"more": os.urandom(4_000_000)})
    bench = Bench(tmp_path, "container", images=ImageSupply(place / "small", LOOPBACK, 6_000_000))
    run = bench.script("run", "true")
    wanted = {
        tools.replace("tools", "none"): "cannot be fetched: .*manifest unknown",
        other: "is for linux on s390x; this machine is linux on ",
        bare: "has no /bin/sh",
        huge: "is too large: (all images together may have|disk limit of) 6 MB",
        "docker.io/library/debian": "jobs may not use the image",
        "localhost/team/tools": "names no registry",
        "a b": "is not the name of an image",
    }
    for name, why in wanted.items():
        outcome = await bench.build(run=(run,), image=name)
        assert outcome.result == "NODE_FAILURE" and re.search(why, outcome.error), (name, outcome)
    assert (await bench.build(run=(run,), image=tools)).result == "SUCCESS", bench.log
    nowhere = Bench(tmp_path / "images", "bwrap") if (tmp_path / "images").mkdir() is None else bench
    outcome = await nowhere.build(run=(nowhere.script("run", "true"),), image=tools)
    assert outcome.result == "NODE_FAILURE" and "no job runs in an image here ([executor] sandbox)" in outcome.error


@pytest.mark.long
async def test_limits_apply_in_containers_and_nothing_is_left(place: Path, tmp_path: Path, tools: str) -> None:
    bounds = ProcessBounds(processes_max=20, disk_max_bytes=30_000_000)
    bench = Bench(tmp_path, "container", images=ImageSupply(place / "kept", LOOPBACK, 10**9), bounds=bounds)
    many = bench.script("many", "for i in $(busybox seq 60); do sleep 60 & done; wait")
    outcome = await bench.build(run=(many,), image=tools)
    assert outcome.result == "FAILURE" and "limit of 20 processes reached" in outcome.error, outcome
    write = "for i in 3 4; do dd if=/dev/zero bs=1M count=1 >&$i; done"
    much = bench.script("much", f"exec 3>/a 4>/b; rm /a /b; while sleep 0.2; do {write}; done")
    outcome = await bench.build(run=(much,), image=tools)
    assert outcome.result == "FAILURE" and "disk limit of 30 MB reached" in outcome.error, outcome
    assert not list((tmp_path / "builds").iterdir())


@pytest.mark.long
async def test_mounts_and_processes_of_a_killed_supervisor_are_removed(place: Path, tmp_path: Path, tools: str) -> None:
    bench = Bench(tmp_path, "container", images=ImageSupply(place / "kept", LOOPBACK, 10**9))
    build = bench.start(run=(bench.script("run", "touch /made; echo UP; sleep 600"),), image=tools)
    await bench.says("| UP")
    for one in psutil.Process().children():  # the parent of the commands: its end is the end of an executor
        if "supervisor" in " ".join(one.cmdline()):
            for child in (*one.children(), one):
                child.send_signal(signal.SIGKILL)
    await asyncio.wait({build})
    assert end_of(bench.id)
    assert "/mnt overlay" not in Path("/proc/self/mounts").read_text()
    await bench.runner.sweep()
    assert not list((tmp_path / "builds").iterdir())


CONTAINERFILE = """
FROM BASE
ARG WHO=everybody
ENV GREETING="hello there"
WORKDIR /opt/made
COPY greeting tools/ ./
RUN cat greeting > said && echo $WHO >> said
RUN id -u >> said; hostname > /dev/null || true
ENTRYPOINT ["/bin/false"]
"""


@pytest.mark.long
async def test_an_image_is_built_of_a_file_once(place: Path, tmp_path: Path, tools: str) -> None:
    bench = Bench(tmp_path, "container", images=ImageSupply(place / "kept", LOOPBACK, 10**9))
    beside = bench.source / "ci/image"
    (beside / "tools").mkdir(parents=True)
    (beside / "Containerfile").write_text(CONTAINERFILE.replace("BASE", tools))
    (beside / "greeting").write_text("good morning\n")
    (beside / "tools/one").write_text("#!/bin/sh\necho of tools\n")
    (beside / "tools/one").chmod(0o755)
    job = {"run": (bench.script("run", "cat /opt/made/said /marked; /opt/made/one; echo $GREETING, $WHO."),)}
    outcome = await bench.build(**job, image_file="ci/image/Containerfile")
    assert outcome.result == "SUCCESS", bench.log
    for line in ("good morning", "everybody", "0", "by the layer above", "of tools", "hello there, ."):
        assert bench.log.count(f"| {line}\n") == 1, (line, bench.log)
    assert "IMAGE ci/image/Containerfile:7: RUN cat greeting > said" in bench.log
    assert (await bench.build(**job, image_file="ci/image/Containerfile")).result == "SUCCESS", bench.log
    assert "| everybody\n" in bench.log and "IMAGE ci" not in bench.log, "it was built already"
    (beside / "greeting").write_text("good evening\n")
    (beside / "Containerfile").write_text(CONTAINERFILE.replace("BASE", tools).replace("RUN id", "RUN exit 3; id"))
    outcome = await bench.build(**job, image_file="ci/image/Containerfile")
    assert outcome.result == "FAILURE" and "Containerfile:8: RUN exit 3; id" in outcome.error, outcome
    assert outcome.error.endswith("exit status 3") and not list((place / "kept/building").iterdir())
    outcome = await bench.build(**job, image_file="ci/Containerfile")
    assert outcome.result == "ERROR" and "has no file ci/Containerfile" in outcome.error, outcome
