"""Test configurations with small mistakes, and answers that no cloud should give."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headgate.adapters.nodes.clouds.aws import launch, query
from headgate.adapters.nodes.clouds.aws.api import AwsCredentials, AwsKeySource
from headgate.adapters.nodes.clouds.http import CloudResponse, Http
from headgate.adapters.nodes.clouds.kubernetes import objects
from headgate.adapters.nodes.clouds.kubernetes.kubeconfig import read
from headgate.adapters.nodes.clouds.podman.driver import _image
from headgate.base.errors import UserError
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, CloudUnavailable, LaunchFailed, MachineSpec


def wanted(label: dict[str, Any] | None = None, flavor: dict[str, Any] | None = None, **more: Any) -> MachineSpec:
    return MachineSpec("n1", label or {}, more.get("image", {}), flavor or {}, {}, more.get("tags", {}))


def test_however_many_tags_a_label_has_the_machine_is_known_by_ours() -> None:
    own = {f"team-{number}": "blue" for number in range(60)}
    (specification,) = launch.tags(wanted(tags={**own, SYSTEM_TAG: "9f0e", NODE_TAG: "n1"}), "instance")
    found = {tag["Key"]: tag["Value"] for tag in specification["Tag"]}
    assert (found[SYSTEM_TAG], found[NODE_TAG]) == ("9f0e", "n1") and len(found) <= 50


def test_one_where_several_may_be_is_one() -> None:
    assert launch.types(wanted(flavor={"fleet": {"instance-types": "m5.large"}})) == ["m5.large"]
    query = launch.image_query({"image-filters": {"name": "name", "values": "debian-*"}})
    assert query["Filter"][0] == {"Name": "name", "Value": ["debian-*"]}
    assert objects.pull_secrets(wanted({"image-pull-secrets": {"name": "registry"}})) == [{"name": "registry"}]


@pytest.mark.parametrize("value", ["registry", {"namespace": "keys"}, [{"name": "registry"}, {}], [7]])
def test_a_pull_secret_without_a_name_fails_its_label_and_leaves_the_cluster_to_others(value: Any) -> None:
    with pytest.raises(LaunchFailed, match="image-pull-secrets"):
        objects.pull_secrets(wanted({"name": "small", "image-pull-secrets": value}))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
def test_an_answer_with_expanding_entities_counts_as_no_answer(encoding: str) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 8))
    body = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY e0 "lol">{entities}]><a>&e7;</a>'
    with pytest.raises(CloudUnavailable, match="document type"):
        query.read(CloudResponse(200, body.encode(encoding), {}))


async def test_errors_name_the_host_that_lends_keys_to_a_container_but_not_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(*_: Any, **__: Any) -> CloudResponse:
        return CloudResponse(403, b"", {})

    monkeypatch.setattr(Http, "ask", ask)
    env = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/as-good-as-a-key", "HOME": "/nowhere"}
    keys = AwsCredentials(Http(), AwsKeySource(), "", "r", {**env, "AWS_SHARED_CREDENTIALS_FILE": "/none"}, lambda: 0.0)
    with pytest.raises(CloudUnavailable, match=r"169\.254\.170\.2 returned status 403") as raised:
        await keys.keys()
    assert "as-good" not in str(raised.value)


def kubeconfig(tmp_path: Any, server: str) -> Any:
    file = tmp_path / "config"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "one", "user": "u"}}],
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file.write_text(yaml.safe_dump(config))
    return read([file], "")


def test_a_password_in_the_address_of_a_cluster_is_hidden_from_builds(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="cluster one names a user") as raised:
        kubeconfig(tmp_path, "https://root:hunter2@k8s.example:6443")
    assert "hunter2" not in str(raised.value)


def test_two_clusters_behind_one_address_have_two_names(tmp_path: Any) -> None:
    names = [kubeconfig(tmp_path, f"https://rancher.example/k8s/clusters/{one}/").name for one in ("c-1", "c-2")]
    assert names == ["rancher-example-k8s-clusters-c-1", "rancher-example-k8s-clusters-c-2"]


@pytest.mark.parametrize(
    "image",
    ["dir:/etc", "dir:etc", "oci-archive:/srv/a.tar", "docker-archive:/x:y", "containers-storage:[overlay@/x]y", "-v",
     "docker://a/b", "docker-daemon:a:b", "oci:/x", "a b", "../x", "/etc", "a\n--privileged"],
)  # fmt: skip
def test_no_file_of_this_machine_is_an_image(image: str) -> None:
    with pytest.raises(LaunchFailed, match="not a name in a registry"):
        _image(wanted(image={"name": "debian", "image-id": image}))


@pytest.mark.parametrize(
    "image",
    ["debian", "localhost/machine:1", "r.example:5000/a/b-c@sha256:" + "0" * 64, "quay.io/a/b_c:v1.2-x", "0f3e07c01"],
)
def test_names_in_registries_are_images(image: str) -> None:
    assert _image(wanted(image={"image-id": image})) == image
