"""Describe what a node is made of: a namespace with its tags, an account with few rights and its token, and a pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.adapters.nodes.clouds.kubernetes.api import CORE, ROLES, path
from headgate.ports.cloud import NODE_TAG, SYSTEM_TAG, LaunchFailed, MachineSpec

ACCOUNT = "zuul-worker"
"""Service account of a build; its role and its secret have the same name."""
KIND_TAG = "headgate_kind"
POD, NAMESPACE = "pod", "namespace"
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_UNFIT = re.compile(r"[^a-z0-9-]+")
_EVERY = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
_LOOK = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list", "watch"]}
_CONNECT = {"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["get", "create"]}
"""Newer clients connect over websockets, which needs `get`."""
_MAKE = (
    {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": _EVERY},
    {"apiGroups": ["batch"], "resources": ["jobs", "cronjobs"], "verbs": _EVERY},
    {"apiGroups": [""], "resources": ["pods", "services", "configmaps", "secrets"], "verbs": _EVERY},
)


def name_of(node: str) -> str:
    """Return the name of the namespace: one for a node, so that it is never made twice."""
    name = f"np-{_UNFIT.sub('-', node.lower()).strip('-')}"
    if len(name) > 63:
        raise LaunchFailed(f"the node {node} has a name that no namespace can have")
    return name


def kind_of(wanted: MachineSpec) -> str:
    """Return `pod` or `namespace`.  Raise LaunchFailed."""
    kind, spec = wanted.label.get("kind"), wanted.label.get("spec")
    if kind not in (POD, NAMESPACE):
        raise LaunchFailed(f"the label {wanted.label.get('name')} has no kind: it is `pod` or `namespace`")
    if kind == POD and not (isinstance(spec, Mapping) and spec.get("containers")):
        raise LaunchFailed(f"the label {wanted.label.get('name')} needs a spec with containers, as it is of kind pod")
    return str(kind)


def ours(wanted: MachineSpec, found: Mapping[str, Any]) -> bool:
    """Return whether a namespace was made for this node."""
    tags = tags_of(found)
    return all(tags.get(tag) == wanted.tags.get(tag) for tag in (SYSTEM_TAG, NODE_TAG))


def tags_of(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a namespace."""
    about = found["metadata"]
    return {**(about.get("annotations") or {}), **(about.get("labels") or {})}


def namespace(wanted: MachineSpec, projects: bool) -> dict[str, Any]:
    """Return tags as labels; tags that are no valid labels become annotations."""
    labels = {KIND_TAG: kind_of(wanted)}
    annotations: dict[str, str] = {}
    for key, value in wanted.tags.items():
        # A key cannot become an annotation instead: annotations and labels have the same syntax for names.
        if not _KEY.fullmatch(key):
            raise LaunchFailed(f"the tag {key!r} cannot be the name of a label of Kubernetes")
        # People can select by labels, but values of labels have at most 63 characters.
        (labels if _VALUE.fullmatch(value) else annotations)[key] = value
    metadata = {"name": name_of(wanted.node), "labels": labels, **({"annotations": annotations} if annotations else {})}
    version, kind = ("project.openshift.io/v1", "Project") if projects else ("v1", "Namespace")
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def review(wanted: MachineSpec) -> dict[str, Any]:
    """Ask whether an account can be created there: a new namespace gets its permissions after a moment."""
    attributes = {"namespace": name_of(wanted.node), "verb": "create", "resource": "serviceaccounts"}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def rights(wanted: MachineSpec) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths and objects that give a build its account."""
    name = name_of(wanted.node)
    rules = [_LOOK, _CONNECT, *(_MAKE if kind_of(wanted) == NAMESPACE else ())]
    whose = {"kubernetes.io/service-account.name": ACCOUNT}
    yield path(CORE, "serviceaccounts", namespace=name), _thing("v1", "ServiceAccount")
    # Since 1.24, clusters make no token secret for an account unless somebody asks for one like this.
    secret = {**_thing("v1", "Secret", whose), "type": "kubernetes.io/service-account-token"}
    yield path(CORE, "secrets", namespace=name), secret
    yield path(ROLES, "roles", namespace=name), {**_thing("rbac.authorization.k8s.io/v1", "Role"), "rules": rules}
    binding = {
        **_thing("rbac.authorization.k8s.io/v1", "RoleBinding"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": name}],
    }
    yield path(ROLES, "rolebindings", namespace=name), binding


def pull_secrets(wanted: MachineSpec) -> list[Mapping[str, Any]]:
    """Return the names of the pull secrets; a single name counts as a list. Raise LaunchFailed for one without a
    name."""
    value = wanted.label.get("image-pull-secrets") or []
    several = [value] if isinstance(value, Mapping) else list(value)
    if not all(isinstance(one, Mapping) and one.get("name") for one in several):
        raise LaunchFailed(f"the label {wanted.label.get('name')} has image-pull-secrets, of which each needs a name")
    return several


def copied(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pull secret, to be made in another namespace."""
    # Nothing else of the metadata: a uid or an owner of the original would make the API reject or collect the copy.
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret["metadata"]["name"]}}
    return {**made, "type": secret.get("type", "Opaque"), "data": secret.get("data") or {}}


def pod(wanted: MachineSpec) -> dict[str, Any]:
    """Return the pod. Unless the label's spec overrides it, the pod is not restarted, and has the pull secrets."""
    # A container that restarts has lost what the build did there; the build must notice that its machine is gone.
    spec = {"restartPolicy": "Never", **wanted.label["spec"]}
    if secrets := pull_secrets(wanted):
        spec.setdefault("imagePullSecrets", [{"name": one["name"]} for one in secrets])
    metadata: dict[str, Any] = {"name": name_of(wanted.node)}
    if annotations := wanted.label.get("annotations"):
        metadata["annotations"] = {str(key): str(value) for key, value in annotations.items()}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _thing(version: str, kind: str, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    more = {"annotations": dict(annotations)} if annotations else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": ACCOUNT, **more}}
