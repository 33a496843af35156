"""Test the requests to a cluster when a node is made and removed, and the messages of failures."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from headgate.adapters.nodes.clouds.kubernetes.driver import Kubernetes
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, CloudUnavailable, LaunchFailed, MachinePending, OverQuota, State
from headgate.testing.servers.kubernetes.server import FakeKubernetesFault, FakeKubernetesServer
from tests.integration.kubernetes.ground import MACHINE, NODE, SPACE, Clock, driver_of, gone, made, namespace, pod


def _thing(cluster: FakeKubernetesServer, kind: str, name: str, space: str = SPACE) -> dict[str, Any]:
    return cluster.cluster.things[kind, space, name]


async def _status_of(cluster: FakeKubernetesServer, token: str, path: str) -> int:
    async with httpx.AsyncClient(base_url=cluster.url, headers={"Authorization": f"Bearer {token}"}) as client:
        return (await client.get(path)).status_code


async def test_a_pod_has_a_namespace_an_account_and_access_for_its_build(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    node = await made(driver, pod(annotations={"note": "a machine"}))
    labels = _thing(cluster, "namespaces", SPACE, "")["metadata"]["labels"]
    assert (labels[SYSTEM_TAG], labels[NODE_TAG]) == ("9f0e", NODE)
    assert _thing(cluster, "namespaces", SPACE, "")["metadata"]["annotations"] == {"team": "blue & green"}
    there = _thing(cluster, "pods", SPACE)
    assert there["spec"]["containers"] == MACHINE["containers"] and there["spec"]["restartPolicy"] == "Never"
    assert there["metadata"]["annotations"] == {"note": "a machine"}
    context = f"{SPACE}:zuul-worker/{cluster.url.removeprefix('http://').replace('.', '-')}"
    assert node.host == {
        "ansible_connection": "kubernetes.core.kubectl",
        "ansible_host": SPACE,
        "ansible_kubectl_pod": SPACE,
        "ansible_kubectl_namespace": SPACE,
        "ansible_kubectl_container": "main",
        "ansible_kubectl_context": context,
    }
    assert node.resources == {"namespace": SPACE, "context": context, "pod": SPACE, "container": "main"}
    token = base64.b64decode(_thing(cluster, "secrets", "zuul-worker")["data"]["token"]).decode()
    assert node.secrets["kubernetes"]["token"] == token
    assert node.secrets["kubernetes"]["authority"] == cluster.cluster.authority
    assert token not in repr((node.host, node.about, node.resources, node.state))


async def test_a_namespace_is_no_host_and_lets_its_build_make_things_there_alone(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    node = await made(driver, namespace())
    assert node.host is None and set(node.resources) == {"namespace", "context"}
    token = node.secrets["kubernetes"]["token"]
    assert await _status_of(cluster, token, f"/api/v1/namespaces/{SPACE}/secrets") == 200
    assert await _status_of(cluster, token, "/api/v1/namespaces/default/secrets") == 403
    assert await _status_of(cluster, token, "/api/v1/namespaces") == 403


async def test_the_account_of_a_pod_sees_neither_secrets_nor_other_namespaces(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    token = (await made(driver, pod())).secrets["kubernetes"]["token"]
    assert await _status_of(cluster, token, f"/api/v1/namespaces/{SPACE}/pods/{SPACE}") == 200
    assert await _status_of(cluster, token, f"/api/v1/namespaces/{SPACE}/secrets") == 403
    assert await _status_of(cluster, token, "/api/v1/namespaces/np-other/pods") == 403


async def test_pull_secrets_are_copied_and_used(cluster: FakeKubernetesServer, driver: Kubernetes) -> None:
    cluster.cluster.create("namespaces", "", {"metadata": {"name": "keys"}})
    kind, data = "kubernetes.io/dockerconfigjson", {".dockerconfigjson": base64.b64encode(b"{}").decode()}
    cluster.cluster.create("secrets", "keys", {"metadata": {"name": "registry"}, "type": kind, "data": data})
    await made(driver, pod(**{"image-pull-secrets": [{"name": "registry", "namespace": "keys"}]}))
    copy = _thing(cluster, "secrets", "registry")
    assert (copy["type"], copy["data"]) == (kind, data)
    assert _thing(cluster, "pods", SPACE)["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    lacking = pod(node="b" * 32, **{"image-pull-secrets": [{"name": "none", "namespace": "keys"}]})
    with pytest.raises(LaunchFailed, match="the pull secret none is not in the namespace keys"):
        await made(driver, lacking)


def _with(**container: Any) -> dict[str, Any]:
    return {"containers": [{**MACHINE["containers"][0], **container}]}


_MAP = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}
NEVER = {
    "an image that is not there": (_with(image="machine:2"), r'main: ErrImagePull: Back-off pulling image "machine:2"'),
    "a setting that is not there": (_with(env=[_MAP]), r'CreateContainerConfigError: configmap "settings" not found'),
    "a command that ends": (_with(command=["true"]), r"\(Succeeded\); main ended with 0 .*`sleep infinity`"),
    "a command that fails": (_with(command=["false"]), r"\(Failed\); main ended with 1 \(Error\)"),
    "one that is begun again": (
        {**_with(command=["false"]), "restartPolicy": "Always"},
        r"main: CrashLoopBackOff: back-off 10s restarting failed container",
    ),
    "no containers": ({"containers": []}, r"needs a spec with containers"),
}


@pytest.mark.parametrize(("spec", "words"), NEVER.values(), ids=NEVER)
async def test_a_pod_that_can_never_start_fails_with_the_clusters_message(
    driver: Kubernetes, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(LaunchFailed, match=words):
        await made(driver, pod(spec))


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        (_with(resources={"requests": {"cpu": "64"}}), OverQuota, "Unschedulable.*Insufficient cpu"),
        (
            {**MACHINE, "nodeSelector": {"disk": "fast"}},
            LaunchFailed,
            "Unschedulable.*didn't match Pod's node affinity",
        ),
    ],
)
async def test_a_cluster_without_room_has_a_moment_to_grow(
    cluster: FakeKubernetesServer, spec: dict[str, Any], kind: type[Exception], words: str
) -> None:
    clock, state = Clock(), dict[str, str]()
    driver = driver_of(cluster, clock, room_max_s=60)

    async def waiting() -> MachinePending:
        step = await driver.advance(pod(spec), state)
        assert isinstance(step, MachinePending)
        state.update(step.state)
        return step

    while "Unschedulable" not in (await waiting()).why:
        pass
    clock.now_s += 59
    await waiting()
    clock.now_s += 2
    with pytest.raises(kind, match=words):
        await waiting()
    await driver.close()


async def test_a_quota_of_the_cluster_is_no_failure_of_the_node(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    cluster.cluster.pods_max = 0
    with pytest.raises(OverQuota, match="exceeded quota: small, requested: pods=1"):
        await made(driver, pod())


async def test_a_node_counts_as_removed_once_the_cluster_has_deleted_it(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    wanted = pod()
    await made(driver, wanted)
    cluster.cluster.pace.deleting = 5
    answers = [await driver.remove(wanted, {}) for _ in range(7)]
    assert answers[0] is False and answers[-1] is True
    assert cluster.log.count(f"DELETE /api/v1/namespaces/{SPACE}") == 1
    assert not [key for key in cluster.cluster.things if SPACE in key]


async def test_a_namespace_of_somebody_else_is_neither_taken_nor_removed(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    cluster.cluster.create("namespaces", "", {"metadata": {"name": SPACE}})
    with pytest.raises(LaunchFailed, match="exists, but is not Headgate's"):
        await made(driver, pod())
    assert await driver.remove(pod(), {})
    assert ("namespaces", "", SPACE) in cluster.cluster.things


async def test_lists_are_read_to_the_end_and_again_when_their_continuation_has_expired(
    cluster: FakeKubernetesServer, driver: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.adapters.nodes.clouds.kubernetes.api.PAGE_SIZE", 2)
    for number in range(5):
        cluster.cluster.create("namespaces", "", {"metadata": {"name": f"team-{number}"}})
    cluster.cluster.forgets_pages = 1
    found = await driver.resources({})
    assert [one.id for one in found] == [f"team-{number}" for number in range(5)]
    cluster.cluster.forgets_pages = 99
    with pytest.raises(CloudUnavailable, match="changes faster than it can be read"):
        await driver.resources({})


async def test_a_writer_that_was_quicker_at_a_quota_is_waited_for(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    cluster.faults.append(FakeKubernetesFault("POST .*/pods$", 409, reason="Conflict"))
    state: State = {}
    with pytest.raises(CloudUnavailable) as raised:
        while True:
            state = (await driver.advance(pod(), state)).state
    assert raised.value.after_s > 0
    assert (await made(driver, pod(), state)).external_id == SPACE


async def test_missing_permissions_are_reported_in_the_words_of_the_cluster(
    cluster: FakeKubernetesServer, driver: Kubernetes
) -> None:
    cluster.cluster.denied |= {"create rolebindings", "list namespaces"}
    with pytest.raises(LaunchFailed, match=r'cannot create resource "rolebindings" in the namespace "np-'):
        await made(driver, pod())
    with pytest.raises(CloudUnavailable, match='cannot list resource "namespaces"'):
        await driver.resources({})
    cluster.cluster.admin = "another"
    with pytest.raises(CloudUnavailable, match="does not accept the credentials"):
        await driver.resources({})


async def test_an_address_that_is_no_cluster_is_named(cluster: FakeKubernetesServer, driver: Kubernetes) -> None:
    cluster.faults.append(FakeKubernetesFault("GET", 200))
    with pytest.raises(
        CloudUnavailable, match=r"returned status 200, but does not look like Kubernetes: is the address correct\?"
    ):
        await driver.resources({})


async def test_projects_of_openshift_take_the_place_of_namespaces(cluster: FakeKubernetesServer) -> None:
    driver = driver_of(cluster, projects=True)
    await made(driver, namespace())
    await gone(driver, namespace())
    await driver.close()
    spaces = {path for path in cluster.log if path.endswith(("/namespaces", f"/namespaces/{SPACE}"))}
    assert not spaces and "POST /apis/project.openshift.io/v1/projects" in cluster.log


async def test_a_tag_that_no_label_can_have_is_refused(driver: Kubernetes) -> None:
    wanted = pod()
    with pytest.raises(LaunchFailed, match="the tag 'my tag' is not a valid name of a Kubernetes label"):
        await made(driver, type(wanted)(NODE, wanted.label, {}, {}, {}, {**wanted.tags, "my tag": "x"}))
