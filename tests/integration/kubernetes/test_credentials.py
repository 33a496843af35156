"""Test how a launcher finds its cluster and its credentials; errors in a kubeconfig name the file and the mistake."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.adapters.nodes.clouds.kubernetes.api import Api
from headgate.adapters.nodes.clouds.kubernetes.driver import Kubernetes, connect
from headgate.adapters.nodes.clouds.kubernetes.kubeconfig import (
    Cluster,
    KubernetesCredentials,
    KubernetesUser,
    found,
    read,
)
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.base.errors import UserError
from headgate.ports.clouds import CloudUnavailable
from headgate.testing.servers.kubernetes.server import FakeKubernetesServer, kubernetes


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[FakeKubernetesServer]:
    """Provide a cluster with TLS."""
    async with kubernetes(tmp_path / "cluster") as found:
        yield found


async def listed(cluster: Cluster) -> int:
    driver = Kubernetes(cluster)
    try:
        return len(await driver.resources({}))
    finally:
        await driver.close()


async def test_a_token_in_the_file_is_enough(site: FakeKubernetesServer) -> None:
    connected = connect(CloudDriverOptions("k8s", {"kubeconfig_file": "kubeconfig"}, site.kubeconfig().parent))
    assert await connected.resources({}) == []
    await connected.close()


async def test_a_client_certificate_is_enough_as_a_file_or_within(site: FakeKubernetesServer) -> None:
    pem = (site.place / "certificates" / "client.pem").read_bytes()
    key, certificate = (pem[pem.index(b"-----BEGIN " + kind) :] for kind in (b"PRIVATE", b"CERTIFICATE"))
    (site.place / "client.crt").write_bytes(certificate)
    (site.place / "client.key").write_bytes(key)
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    within = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }
    for user in (files, within):
        assert await listed(read([site.kubeconfig(**user)], "")) == 0
    with pytest.raises(UserError, match="needs both a client certificate and its key"):
        read([site.kubeconfig(**{"client-key": "client.key"})], "")


async def test_a_server_with_an_untrusted_certificate_is_not_called(site: FakeKubernetesServer) -> None:
    stranger = Cluster(site.url, "x", KubernetesUser(token=site.cluster.admin))
    with pytest.raises(CloudUnavailable, match="certificate"):
        await listed(stranger)
    assert site.log == []


PLUGIN = """
import json, os, pathlib, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
calls = pathlib.Path(sys.argv[1])
calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
token = pathlib.Path(sys.argv[2]).read_text()
status = {"token": token, "expirationTimestamp": os.environ["UNTIL"]}
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


async def test_a_program_prints_the_token_and_runs_again_when_it_expires_or_is_refused(
    site: FakeKubernetesServer, tmp_path: Path
) -> None:
    calls, token = tmp_path / "calls", tmp_path / "token"
    (tmp_path / "plugin.py").write_text(PLUGIN)
    token.write_text(site.cluster.admin)
    command = {"command": sys.executable, "args": [str(tmp_path / "plugin.py"), str(calls), str(token)]}
    user = {"exec": {**command, "apiVersion": "client.authentication.k8s.io/v1", "env": _env("2033-05-18T03:33:20Z")}}
    cluster = read([site.kubeconfig(**user)], "")
    api = Api(cluster)
    for _ in range(2):
        await api.every("/api/v1/namespaces")
    assert calls.read_text() == "x"
    site.cluster.admin = "of-the-next-hour"
    token.write_text(site.cluster.admin)
    assert await api.every("/api/v1/namespaces") == [] and calls.read_text() == "xx"
    await api.close()
    now_s = 2_000_000_000.0 - 61
    asking = KubernetesCredentials(cluster, lambda: now_s)
    await asking.headers()
    await asking.headers()
    assert calls.read_text() == "xxx"
    now_s += 2
    assert await asking.headers() == {"Authorization": "Bearer of-the-next-hour"} and calls.read_text() == "xxxx"


async def test_of_requests_with_one_ended_token_all_are_repeated_and_a_late_answer_discards_no_other(
    site: FakeKubernetesServer, tmp_path: Path
) -> None:
    calls, token = tmp_path / "calls", tmp_path / "token"
    (tmp_path / "plugin.py").write_text(PLUGIN)
    token.write_text(site.cluster.admin)
    command = {"command": sys.executable, "args": [str(tmp_path / "plugin.py"), str(calls), str(token)]}
    cluster = read([site.kubeconfig(exec={**command, "env": _env("2033-05-18T03:33:20Z")})], "")
    api, asking = Api(cluster), KubernetesCredentials(cluster)
    await api.every("/api/v1/namespaces")
    ended = await asking.headers()
    site.cluster.admin = "of-the-next-hour"
    token.write_text(site.cluster.admin)
    answers = await asyncio.gather(*(api.every("/api/v1/namespaces") for _ in range(3)))
    assert answers == [[], [], []] and calls.read_text() == "xxx"
    await api.close()
    assert asking.refused(ended) and asking.refused(ended)
    renewed = await asking.headers()
    assert asking.refused(ended) and await asking.headers() == renewed != ended and calls.read_text() == "xxxx"
    credentials = KubernetesCredentials(Cluster(site.url, "x", KubernetesUser(token="t")))
    assert not credentials.refused(await credentials.headers())


def _env(until: str) -> list[Mapping[str, str]]:
    return [{"name": "UNTIL", "value": until}]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["-c", "import sys; sys.exit('log in first')"], "ended with 1: log in first"),
        (["-c", "print('hello')"], "does not behave like a Kubernetes credential plugin"),
        (["-c", f"print({json.dumps(json.dumps({'status': {}}))})"], "provides no token; client certificates"),
    ],
)
async def test_a_program_that_prints_no_token_is_named_with_its_output(words: list[str], wrong: str) -> None:
    cluster = Cluster("https://127.0.0.1:1", "x", KubernetesUser(plugin={"command": sys.executable, "args": words}))
    with pytest.raises(CloudUnavailable, match=wrong):
        await KubernetesCredentials(cluster).headers()


def _config(**more: Any) -> dict[str, Any]:
    return {
        "current-context": "site",
        "clusters": [{"name": "one", "cluster": {"server": "https://one.example:6443/"}}],
        "contexts": [{"name": "site", "context": {"cluster": "one", "user": "me"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        **more,
    }


@pytest.mark.parametrize(
    ("content", "context", "wrong"),
    [
        ("[1]", "", "is not a kubeconfig"),
        (_config(), "other", "there is no context 'other'"),
        (_config(**{"current-context": ""}), "", "has no current-context: set `context`"),
        (_config(clusters=[]), "", "there is no cluster 'one'"),
        (_config(clusters=[{"name": "one", "cluster": {"server": "one"}}]), "", "which is not a URL"),
        (
            _config(users=[{"name": "me", "user": {"auth-provider": {"name": "gcp"}}}]),
            "",
            "which Kubernetes 1.26 removed",
        ),
        (_config(users=[{"name": "me", "user": {"exec": {}}}]), "", "`exec` of the user me has no command"),
        (_config(users=[{"name": "me", "user": {"client-key": "none"}}]), "", "the client-key none cannot be read"),
    ],
)
def test_errors_in_a_kubeconfig_name_the_file(tmp_path: Path, content: Any, context: str, wrong: str) -> None:
    file = tmp_path / "config"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(UserError, match=f"{file}.*{wrong}"):
        read([file], context)


def test_an_invalid_certificate_is_reported_before_any_request() -> None:
    with pytest.raises(UserError, match=r"for https://x:1 cannot be read"):
        Kubernetes(Cluster("https://x:1", "x", KubernetesUser(), authority="-----BEGIN CERTIFICATE-----\nx"))


def test_the_cluster_is_that_of_the_file_else_of_the_environment_else_the_one_around_us(tmp_path: Path) -> None:
    for name in ("named", "said", "home/.kube/config"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        server = {"server": f"https://{name.partition('/')[0]}:6443"}
        file.write_text(yaml.safe_dump(_config(clusters=[{"name": "one", "cluster": server}])))
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / "token").write_text("of the pod\n")
    (pod / "ca.crt").write_text("")
    around = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    environment = {**around, "KUBECONFIG": f"{tmp_path / 'absent'}:{tmp_path / 'said'}", "HOME": str(tmp_path / "home")}
    home = {**around, "HOME": str(tmp_path / "home")}
    assert found(tmp_path / "named", "", environment, pod).server == "https://named:6443"
    assert found(None, "", environment, pod).server == "https://said:6443"
    assert found(None, "", home, pod).server == "https://home:6443"
    inside = found(None, "", around, pod)
    assert (inside.server, inside.user.token_file) == ("https://10.0.0.1:443", pod / "token")
    with pytest.raises(UserError, match="no cluster is known: set kubeconfig_file"):
        found(None, "", {"HOME": str(tmp_path)}, pod)
    assert found(tmp_path / "named", "", {}, pod).name == "named:6443"
