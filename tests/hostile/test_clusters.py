"""Test nodes in a Kubernetes cluster: how jobs may use their credentials, and messages of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.ports.clouds import LaunchFailed
from headgate.testing.servers.kubernetes.server import kubernetes
from tests.integration.builds.bench import Bench
from tests.integration.builds.test_secrets import Keys
from tests.integration.kubernetes.ground import driver_of, made, namespace, pod
from tests.integration.kubernetes.test_kubectl import KUBECTL

SCRIPT = """
echo "context is $(KUBECTL config current-context)"
KUBECTL get secrets -o name
KUBECTL get namespaces 2>&1 | cut -c 1-60
echo "its token is $(grep -o '"token": "[^"]*"' $KUBECONFIG | cut -d '"' -f 4)"
stat -c '%a' $KUBECONFIG
"""
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - assert: {that: "lookup('env', 'KUBECONFIG') is file"}
"""


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl is not installed: it is of requirements/dev.txt")
@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
async def test_a_build_asks_the_cluster_of_its_nodes_and_its_token_stays_nowhere(tmp_path: Path, sandbox: str) -> None:
    async with kubernetes(tmp_path / "cluster") as cluster:
        keys, driver = Keys(), driver_of(cluster)
        space, machine = await made(driver, namespace("b" * 32)), await made(driver, pod())
        await driver.close()
        nodes = {"space": space, "machine": machine}
        sealed = {
            name: await keys.sealed("local", "app", json.dumps(node.secrets).encode()) for name, node in nodes.items()
        }
        bench = Bench(tmp_path, sandbox, keys=keys, keep_work_dir=True)
        script = bench.script("ask", SCRIPT.replace("KUBECTL", str(KUBECTL)))
        hosts = {"machine": {**(machine.host or {}), "nodepool": machine.about}}
        spec = {"hosts": hosts, "node_secrets": sealed}
        outcome = await bench.build(run=(script, bench.script("play.yaml", PLAY)), spec=spec)
        log = bench.log
        assert outcome.result == "SUCCESS", log
    assert f"context is {space.resources['context']}" in log and "secret/zuul-worker" in log
    assert "Error from server (Forbidden): namespaces is forbidden" in log
    assert "| 600" in log and "its token is " in log
    for node in nodes.values():
        token = node.secrets["kubernetes"]["token"].encode()
        assert token not in log.encode()
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and token in path.read_bytes()]


async def test_an_executor_without_keys_says_why_it_cannot_run_such_a_build(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    sealed = {"space": await Keys().sealed("local", "app", b"{}")}
    outcome = await bench.build(run=(bench.script("ask", "true"),), spec={"node_secrets": sealed})
    assert (outcome.result, "this executor has no keys" in outcome.error) == ("ERROR", True)


async def test_messages_of_a_cluster_are_one_short_printable_line(tmp_path: Path) -> None:
    async with kubernetes(tmp_path / "cluster", plain=True) as cluster:
        driver = driver_of(cluster)
        with pytest.raises(LaunchFailed) as raised:
            await made(driver, pod({"containers": [{"name": "main", "image": "\x1b[2J\n" + "x" * 1_000_000}]}))
        await driver.close()
    assert str(raised.value).isprintable() and len(str(raised.value)) < 2_000
