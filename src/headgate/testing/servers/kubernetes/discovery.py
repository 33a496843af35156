"""Answer what kubectl asks a cluster about itself before anything else."""

from __future__ import annotations

from typing import Any

from headgate.testing.servers.kubernetes.state import KINDS

_VERBS = ["create", "delete", "get", "list"]
GROUPS = ("rbac.authorization.k8s.io", "authorization.k8s.io")


def answer(path: str) -> dict[str, Any] | None:
    """Return what is known of versions and kinds at a path."""
    match path.strip("/").split("/"):
        case ["version"]:
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.1", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in GROUPS]}
        case ["api", "v1"]:
            return _kinds("")
        case ["apis", group, "v1"] if group in GROUPS:
            return _kinds(group)
    return None


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _kinds(group: str) -> dict[str, Any]:
    found = [
        {"name": name, "singularName": kind.name.lower(), "namespaced": kind.within, "kind": kind.name, "verbs": _VERBS}
        for name, kind in KINDS.items()
        if kind.group == group
    ]
    if not group:
        found += [
            {"name": f"pods/{one}", "namespaced": True, "kind": "Pod", "verbs": ["get"]} for one in ("log", "exec")
        ]
    if group == "authorization.k8s.io":
        found += [
            {
                "name": "selfsubjectaccessreviews",
                "namespaced": False,
                "kind": "SelfSubjectAccessReview",
                "verbs": ["create"],
            }
        ]
    version = f"{group}/v1" if group else "v1"
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}
