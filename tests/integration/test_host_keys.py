"""Test that machines must show their keys: to the launcher's ssh, and to Ansible's, with real servers on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.adapters.nodes.ssh import SshProvider
from headgate.config.model import Node, Nodeset
from headgate.inventory.model import HOST_KEY
from headgate.ports.clouds import HOST_KEY_VARIABLE, Machine, MachineUnusable
from headgate.testing.servers.sshd import Lab, program
from tests.integration.builds.bench import Bench

pytestmark = pytest.mark.skipif(program() is None, reason="needs Debian's package openssh-server")
PLAY = "- hosts: all\n  gather_facts: false\n  tasks: [{raw: echo reached}]\n"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


@pytest.fixture
def ports(lab: Lab) -> Iterator[list[int]]:
    with ExitStack() as stack:
        yield [stack.enter_context(lab.server()) for _ in range(2)]


def a_machine(lab: Lab, port: int, **properties: str) -> Machine:
    settings = {name.replace("_", "-"): value for name, value in properties.items()}
    return Machine("m", {**lab.properties(port), **settings}, {}, f"host-keys-{port}")


def other(lab: Lab) -> str:
    """An unused key."""
    return " ".join((lab.root / "key.pub").read_text().split()[:2])


@pytest.mark.long
async def test_a_key_seen_first_is_learned_and_held_to(lab: Lab, ports: list[int]) -> None:
    provider = SshProvider()
    learned = (await provider.prepare(a_machine(lab, ports[0])))[HOST_KEY_VARIABLE]
    assert learned == lab.host_key
    known = a_machine(lab, ports[0], host_key=f"{other(lab)}\n{learned}")
    assert (await provider.prepare(known))[HOST_KEY_VARIABLE].endswith(learned)
    await provider.clean(known)


async def test_another_key_is_refused_and_the_property_named(lab: Lab, ports: list[int]) -> None:
    wrong = a_machine(lab, ports[0], host_key=other(lab))
    for use in (SshProvider().prepare, SshProvider().clean, SshProvider(learns=False).prepare):
        with pytest.raises(MachineUnusable, match=f"has another key.*{HOST_KEY}"):
            await use(wrong)


async def test_a_machine_that_nobody_knows_is_used_only_if_that_is_allowed(lab: Lab, ports: list[int]) -> None:
    with pytest.raises(MachineUnusable, match=f"has no property {HOST_KEY}"):
        await SshProvider(learns=False).prepare(a_machine(lab, ports[0]))
    known = a_machine(lab, ports[0], host_key=lab.host_key)
    await SshProvider(learns=False).prepare(known)
    await SshProvider(learns=False).clean(known)


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("right", [True, False])
async def test_playbooks_verify_the_host_key_of_a_machine(
    tmp_path: Path, lab: Lab, ports: list[int], right: bool
) -> None:
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench")
    key = lab.host_key if right else other(lab)
    hosts = {"one": {**lab.properties(ports[0]), HOST_KEY_VARIABLE: key, "ansible_ssh_retries": 0}}
    nodes = Nodeset(nodes=(Node(("one",), "any"),))
    outcome = await bench.start(run=(bench.script("play.yml", PLAY),), nodeset=nodes, spec={"hosts": hosts})
    if right:
        assert outcome.result == "SUCCESS" and "one | reached" in bench.log, bench.log
    else:
        assert outcome.result is None and "Host key verification failed" in bench.log, bench.log


@pytest.mark.long
async def test_a_build_logs_in_with_a_key_that_it_cannot_read(tmp_path: Path, lab: Lab, ports: list[int]) -> None:
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench", "bwrap")
    hosts = {"one": {**lab.properties(ports[0]), HOST_KEY_VARIABLE: lab.host_key}}
    nodes = Nodeset(nodes=(Node(("one",), "any"),))
    outcome = await bench.start(run=(bench.script("play.yml", PLAY),), nodeset=nodes, spec={"hosts": hosts})
    await bench.runner.close()
    assert outcome.result == "SUCCESS" and "one | reached" in bench.log, bench.log


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("missing", "cannot be read by the executor"),
        ("key.pub", "is not accepted"),
        ("pipe", "cannot be read by the executor: this is a named pipe"),
    ],
)
async def test_a_key_that_cannot_be_used_is_named(
    tmp_path: Path, lab: Lab, ports: list[int], key: str, why: str
) -> None:
    if key == "pipe":
        os.mkfifo(lab.root / key)
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench", "bwrap")
    hosts = {"one": {**lab.properties(ports[0]), "ansible_ssh_private_key_file": str(lab.root / key)}}
    nodes = Nodeset(nodes=(Node(("one",), "any"),))
    outcome = await bench.start(run=(bench.script("play.yml", PLAY),), nodeset=nodes, spec={"hosts": hosts})
    await bench.runner.close()
    assert outcome.result == "ERROR" and f"the key {lab.root / key}, which logs in to a machine" in outcome.error
    assert why in outcome.error and "UNREACHABLE" not in bench.log
