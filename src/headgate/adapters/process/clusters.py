"""Give a build access to its nodes' clusters: a kubeconfig in its home, and the addresses of their servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from headgate.adapters.process.network.listeners import NetworkTarget

SECRET = "kubernetes"
"""Key in a node's secrets of the access to its cluster."""
_PORTS = {"https": 443, "http": 80}

Secrets = Mapping[str, Any]
"""Secrets of one node, for its build alone. JSON."""


def kubeconfig(secrets: Iterable[Secrets]) -> bytes:
    """Return a kubeconfig for the clusters of all nodes, with the first one's context as the current; empty if there
    are none. It is JSON, which is also YAML."""
    every = [one[SECRET] for one in secrets if one.get(SECRET)]
    if not every:
        return b""
    clusters = {one["cluster"]: _cluster(one) for one in every}
    contexts = {
        one["context"]: {"cluster": one["cluster"], "user": one["user"], "namespace": one["namespace"]} for one in every
    }
    users = {one["user"]: {"token": one["token"]} for one in every}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
        "current-context": every[0]["context"],
    }
    return json.dumps(config, indent=1).encode() + b"\n"


def tokens(secrets: Iterable[Secrets]) -> Iterator[str]:
    """Yield the tokens, which must not appear in logs."""
    for secret in secrets:
        if secret.get(SECRET):
            yield str(secret[SECRET]["token"])


def servers(secrets: Iterable[Secrets]) -> Iterator[NetworkTarget]:
    """Yield the addresses of the clusters."""
    for one in secrets:
        if one.get(SECRET):
            place = urlsplit(one[SECRET]["server"])
            yield NetworkTarget(place.hostname or "", place.port or _PORTS.get(place.scheme, 443))


def _cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"server": cluster["server"]}
    if cluster.get("authority"):
        found["certificate-authority-data"] = base64.b64encode(str(cluster["authority"]).encode()).decode()
    if cluster.get("verified") is False:
        found["insecure-skip-tls-verify"] = True
    if cluster.get("called"):
        found["tls-server-name"] = cluster["called"]
    return found
