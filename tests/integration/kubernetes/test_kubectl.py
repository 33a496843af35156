"""Test the real kubectl on the modelled cluster; a build's kubeconfig opens its pod, a real container."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.process.access import kubeconfig
from headgate.testing.servers.images import archive, shell
from headgate.testing.servers.kubernetes.containers import MISSING, ContainerEngine
from headgate.testing.servers.kubernetes.server import FakeKubernetesServer, kubernetes
from tests.integration.kubernetes.description import judge
from tests.integration.kubernetes.ground import MACHINE, SPACE, driver_of, gone, made, pod

KUBECTL = Path(sys.executable).with_name("kubectl")
pytestmark = [
    pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl is not installed: it is of requirements/dev.txt"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"), reason=MISSING),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[ContainerEngine]:
    found = ContainerEngine()
    try:
        found.load("machine:1", archive(shell()))
        yield found
    finally:
        found.close()


@pytest.fixture
async def cluster(tmp_path: Path, engine: ContainerEngine) -> AsyncIterator[FakeKubernetesServer]:
    async with kubernetes(tmp_path / "cluster", engine) as found:
        found.judge = judge
        yield found
    assert found.wrong == []


async def kubectl(config: Path, *words: str, stdin: bytes = b"") -> tuple[int, str]:
    """Return its exit status and output."""
    environment = {"KUBECONFIG": str(config), "HOME": str(config.parent), "PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), *words, env=environment, stdin=PIPE if stdin else DEVNULL, stdout=PIPE, stderr=PIPE
    )
    out, wrong = await process.communicate(stdin or None)
    return process.returncode or 0, (out + wrong).decode()


ROLES = "rbac.authorization.k8s.io"
THINGS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "one"}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker", "namespace": "one"}},
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "one"}, "stringData": {"a": "b"}},
    {
        "apiVersion": f"{ROLES}/v1", "kind": "Role", "metadata": {"name": "reader", "namespace": "one"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    },
    {
        "apiVersion": f"{ROLES}/v1", "kind": "RoleBinding", "metadata": {"name": "reader", "namespace": "one"},
        "roleRef": {"apiGroup": ROLES, "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": "one"}],
    },
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"more-{number}"}} for number in range(3)),
]  # fmt: skip


@pytest.mark.long
async def test_kubectl_makes_lists_and_deletes_objects_of_the_modelled_cluster(cluster: FakeKubernetesServer) -> None:
    config = cluster.kubeconfig()
    data = json.dumps({"apiVersion": "v1", "kind": "List", "items": THINGS}).encode()
    making = "create", "--validate=false", "-f", "-"
    status, text = await kubectl(config, *making, stdin=data)
    assert status == 0 and len(text.splitlines()) == len(THINGS), text
    assert "AlreadyExists" in (await kubectl(config, *making, stdin=json.dumps(THINGS[0]).encode()))[1]
    names = await kubectl(config, "get", "namespaces", "--chunk-size=2", "-o", "name")
    assert names[1].split() == ["namespace/more-0", "namespace/more-1", "namespace/more-2", "namespace/one"]
    kinds = await kubectl(config, "get", "serviceaccounts,secrets,roles,rolebindings", "-n", "one", "-o", "name")
    assert kinds[1].split() == [
        "serviceaccount/worker", "secret/s", f"role.{ROLES}/reader", f"rolebinding.{ROLES}/reader"
    ]  # fmt: skip
    await kubectl(config, "delete", "namespace", "one", "--wait=false")
    assert (await kubectl(config, "get", "namespace", "one", "-o", "jsonpath={.status.phase}"))[1] == "Terminating"


@pytest.mark.long
async def test_a_build_runs_commands_in_its_pod_and_nowhere_else(
    cluster: FakeKubernetesServer, engine: ContainerEngine, tmp_path: Path
) -> None:
    driver = driver_of(cluster)
    wanted, other = pod(), pod({"containers": [{**MACHINE["containers"][0], "name": "theirs"}]}, node="b" * 32)
    node, theirs = await made(driver, wanted), await made(driver, other)
    config = tmp_path / "home" / "config"
    config.parent.mkdir()
    config.write_bytes(kubeconfig([node.secrets]))
    assert sorted(engine.living()) == sorted([f"{SPACE}-main", f"np-{'b' * 32}-theirs"])

    where = ["exec", "-i", SPACE, "-c", node.resources["container"], "--"]
    assert await kubectl(config, *where, "sh", "-c", "cat; exit 3", stdin=b"to the pod\n") == (
        3,
        "to the pod\ncommand terminated with exit code 3\n",
    )
    assert (await kubectl(config, *where, "cat", "/proc/1/cmdline"))[1] == "sleep\x001000\x00"
    for words in (
        ["get", "pods", "-n", theirs.resources["namespace"]],
        ["exec", "-n", theirs.resources["namespace"], theirs.resources["pod"], "--", "id"],
        ["get", "secrets"],
        ["get", "namespaces"],
    ):
        status, text = await kubectl(config, *words)
        assert status != 0 and "orbidden" in text, (words, text)

    await gone(driver, wanted)
    assert engine.living() == [f"np-{'b' * 32}-theirs"]
    status, text = await kubectl(config, *where, "id")
    assert status != 0 and "nauthorized" in text.replace("You must be logged in", "Unauthorized"), text
    await gone(driver, other)
    await driver.close()


@pytest.mark.long
async def test_several_nodes_share_one_kubeconfig(cluster: FakeKubernetesServer, tmp_path: Path) -> None:
    driver = driver_of(cluster)
    nodes = [await made(driver, one) for one in (pod(), pod(node="c" * 32))]
    config = tmp_path / "config"
    config.write_bytes(kubeconfig([node.secrets for node in nodes]))
    contexts = (await kubectl(config, "config", "get-contexts", "-o", "name"))[1].split()
    assert contexts == sorted(node.resources["context"] for node in nodes)
    assert (await kubectl(config, "config", "current-context"))[1].strip() == nodes[0].resources["context"]
    for node in nodes:
        seen = await kubectl(config, "--context", node.resources["context"], "get", "pods", "-o", "name")
        assert seen == (0, f"pod/{node.resources['pod']}\n")
    for node in (pod(), pod(node="c" * 32)):
        await gone(driver, node)
    await driver.close()
