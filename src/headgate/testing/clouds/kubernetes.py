"""Provide a modelled Kubernetes cluster that already has a few namespaces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headgate.adapters.nodes.clouds.kubernetes.driver import Kubernetes
from headgate.adapters.nodes.clouds.kubernetes.kubeconfig import Cluster, KubernetesUser
from headgate.adapters.nodes.clouds.kubernetes.objects import tags_of
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, MachineSpec
from headgate.testing.servers.faults import Fault, Faults, ReceivedRequest, answers
from headgate.testing.servers.kubernetes.server import FakeKubernetesServer, kubernetes
from headgate.testing.servers.kubernetes.state import No

SPACES = "/api/v1/namespaces"
SPEC = {"containers": [{"name": "machine", "image": "machine:1", "command": ["sleep", "infinity"]}]}


def refusal(status: int, reason: str, text: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Return an error answer in the form of Kubernetes."""
    return answers(status, json.dumps(No(status, reason, text).body()).encode(), headers)


class KubernetesGround:
    """Provide one cluster. `machine` is a namespace, since everything of a node is in one."""

    machine = "namespace"
    full = staticmethod(refusal(403, "Forbidden", "namespaces is forbidden: exceeded quota: small, limited: 3"))
    throttled = staticmethod(refusal(429, "TooManyRequests", "Too many requests", {"retry-after": "7"}))
    refused = staticmethod(refusal(403, "Forbidden", "namespaces is forbidden: the moon is full"))
    away = staticmethod(refusal(500, "InternalError", "etcdserver: request timed out"))

    def __init__(self, server: FakeKubernetesServer, faults: Faults) -> None:
        self._server, self.faults = server, faults
        self.provider: Mapping[str, Any] = {"name": "here"}
        self.secrets = [server.cluster.admin]

    def driver(self) -> Kubernetes:
        """Return a driver that connects through the proxy."""
        return Kubernetes(Cluster(self.faults.url, "site", KubernetesUser(token=self._server.cluster.admin)))

    def wanted(self, node: str) -> MachineSpec:
        """Return a pod."""
        label = {"name": "small", "kind": "pod", "spec": SPEC}
        return MachineSpec(node, label, {"name": "any"}, {}, self.provider, self._tags(node))

    def impossible(self, node: str) -> MachineSpec:
        """Return a pod without containers."""
        label = {"name": "small", "kind": "pod", "spec": {}}
        return MachineSpec(node, label, {"name": "any"}, {}, self.provider, self._tags(node))

    @staticmethod
    def _tags(node: str) -> dict[str, str]:
        return {SYSTEM_TAG: "ours", NODE_TAG: node, "team": "blue & green <"}

    def makes(self, request: ReceivedRequest) -> bool:
        """Return whether the request makes a namespace."""
        return request.method == "POST" and request.path == SPACES

    def lists(self, request: ReceivedRequest) -> bool:
        """Return whether the request reads namespaces; drivers read the namespace of one node by its name."""
        # Objects within a namespace have more slashes.
        return request.method == "GET" and request.path.startswith(SPACES) and request.path.count("/") <= 4

    async def everything(self) -> dict[str, Mapping[str, str]]:
        """Return the namespaces of the cluster, without those that existed before the test."""
        return {
            name: {key: value for key, value in tags_of(record).items() if key in (SYSTEM_TAG, NODE_TAG, "team")}
            for (kind, _, name), record in self._server.cluster.things.items()
            if kind == "namespaces" and name != "default"
        }

    async def foreign(self) -> str:
        """Make a namespace of another installation."""
        labels = {SYSTEM_TAG: "theirs", NODE_TAG: "their-node"}
        namespace = {"metadata": {"name": "np-their-node", "labels": labels}}
        return str(self._server.cluster.create("namespaces", "", namespace)["metadata"]["name"])


@asynccontextmanager
async def kubernetes_ground(place: Path) -> AsyncIterator[KubernetesGround]:
    """Provide a cluster behind a proxy."""
    async with kubernetes(place, plain=True) as server, Faults(server.url).serving() as faults:
        server.cluster.create("namespaces", "", {"metadata": {"name": "default"}})
        yield KubernetesGround(server, faults)
