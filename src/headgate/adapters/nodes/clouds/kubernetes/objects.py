"""Build the objects of a node: a namespace, an account and a pod; and read the status of the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.adapters.nodes.clouds.http import one_line
from headgate.adapters.nodes.clouds.kubernetes.api import CORE, ROLES, path
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, LaunchFailed, MachineSpec

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
"""Rights to run commands in pods; newer clients use websockets, which need `get`."""
_MAKE = (
    {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": _EVERY},
    {"apiGroups": ["batch"], "resources": ["jobs", "cronjobs"], "verbs": _EVERY},
    {"apiGroups": [""], "resources": ["pods", "services", "configmaps", "secrets"], "verbs": _EVERY},
)
HOPELESS = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "StartError",
}  # fmt: skip
"""Reasons of a waiting container that are permanent, although the cluster retries forever."""
STAYS = "the command of a machine must not end, for example `sleep infinity`"


def name_of(node: str) -> str:
    """Return the name of the node's namespace; because it is fixed, the node is never made twice."""
    name = f"np-{_UNFIT.sub('-', node.lower()).strip('-')}"
    if len(name) > 63:
        raise LaunchFailed(f"the name of the node {node} is too long for a namespace")
    return name


def kind_of(wanted: MachineSpec) -> str:
    """Return `pod` or `namespace`.  Raise LaunchFailed."""
    kind, spec = wanted.label.get("kind"), wanted.label.get("spec")
    if kind not in (POD, NAMESPACE):
        raise LaunchFailed(f"the label {wanted.label.get('name')} needs a kind: `pod` or `namespace`")
    if kind == POD and not (isinstance(spec, Mapping) and spec.get("containers")):
        raise LaunchFailed(f"the label {wanted.label.get('name')} of kind pod needs a spec with containers")
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
    """Return the node's namespace, with its tags as labels; values that are not valid for labels become annotations."""
    labels = {KIND_TAG: kind_of(wanted)}
    annotations: dict[str, str] = {}
    for key, value in wanted.tags.items():
        # An invalid key cannot become an annotation instead: the names of annotations have the same syntax.
        if not _KEY.fullmatch(key):
            raise LaunchFailed(f"the tag {key!r} is not a valid name of a Kubernetes label")
        # Labels are preferred, because people can select by them, but their values have at most 63 characters.
        (labels if _VALUE.fullmatch(value) else annotations)[key] = value
    metadata = {"name": name_of(wanted.node), "labels": labels, **({"annotations": annotations} if annotations else {})}
    version, kind = ("project.openshift.io/v1", "Project") if projects else ("v1", "Namespace")
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def review(wanted: MachineSpec) -> dict[str, Any]:
    """Return a request that asks whether Headgate may create an account in the node's namespace: a new namespace gets
    its permissions only after a moment."""
    attributes = {"namespace": name_of(wanted.node), "verb": "create", "resource": "serviceaccounts"}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def rights(wanted: MachineSpec) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and object of everything that a build's account needs."""
    name = name_of(wanted.node)
    rules = [_LOOK, _CONNECT, *(_MAKE if kind_of(wanted) == NAMESPACE else ())]
    whose = {"kubernetes.io/service-account.name": ACCOUNT}
    yield path(CORE, "serviceaccounts", namespace=name), _thing("v1", "ServiceAccount")
    # Since Kubernetes 1.24, an account has no token secret unless one is created like this.
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
    """Return the label's pull secrets; a single one counts as a list. Raise LaunchFailed for one without a name."""
    value = wanted.label.get("image-pull-secrets") or []
    several = [value] if isinstance(value, Mapping) else list(value)
    if not all(isinstance(one, Mapping) and one.get("name") for one in several):
        raise LaunchFailed(f"the label {wanted.label.get('name')}: each of its image-pull-secrets needs a name")
    return several


def copied(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a pull secret for another namespace."""
    # Without the rest of the metadata: with the uid or the owner of the original, the API would reject the copy or
    # garbage-collect it.
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret["metadata"]["name"]}}
    return {**made, "type": secret.get("type", "Opaque"), "data": secret.get("data") or {}}


def pod(wanted: MachineSpec) -> dict[str, Any]:
    """Return the pod of the label's spec. Unless the spec sets them, it has no restarts and the label's pull
    secrets."""
    # A restarted container has lost the work of the build, so the build must notice that its machine is gone.
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


@dataclass(frozen=True, slots=True)
class Up:
    container: str
    address: str
    host: str
    """Name of the cluster's node."""


@dataclass(frozen=True, slots=True)
class Coming:
    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Report that no node of the cluster has room now. The cluster may grow, or another pod may end, at any time."""

    why: str
    lacking: bool
    """Whether resources are missing; otherwise, no current node of the cluster will ever accept the pod."""


@dataclass(frozen=True, slots=True)
class KubernetesPodEnded:
    why: str


def reported(pod: Mapping[str, Any]) -> Up | Coming | NoRoom | KubernetesPodEnded:
    """Return the state of a pod, in the cluster's own words."""
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    # For example by an eviction, or the drain of a node of the cluster; the phase is still Running then.
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return KubernetesPodEnded("another user, or the cluster, is deleting the pod")
    # Checked before the phase, which stays Pending while the cluster retries a pull forever.
    if wrong := next(_wrong(status), ""):
        return KubernetesPodEnded(wrong)
    if phase in ("Failed", "Succeeded"):
        return KubernetesPodEnded(_with_message(f"the pod has ended ({phase})", status) + _hint(phase, status))
    if phase != "Running":
        return _unscheduled(status) or Coming(_with_message(f"the pod is {phase}", status))
    # The build runs its commands in the first container; the others are sidecars.
    first = str(pod["spec"]["containers"][0]["name"])
    state: Mapping[str, Any] = next((s for name, s in _containers(status) if name == first), {})
    if "terminated" in state:
        return KubernetesPodEnded(f"container {first} {_ended(state['terminated'])}; {STAYS}")
    if "running" not in state:
        return Coming(f"container {first} is not running yet")
    return Up(first, str(status.get("podIP") or ""), str(pod["spec"].get("nodeName") or ""))


def _containers(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            yield str(one.get("name")), one.get("state") or {}


def _wrong(status: Mapping[str, Any]) -> Iterator[str]:
    for name, state in _containers(status):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            yield f"container {name}: {_with_message(str(waiting['reason']), waiting)}"


def _hint(phase: str, status: Mapping[str, Any]) -> str:
    """Return a message about the containers that ended, with their results."""
    ended = [f"{name} {_ended(state['terminated'])}" for name, state in _containers(status) if "terminated" in state]
    return (f"; {', '.join(ended)}" if ended else "") + (f"; {STAYS}" if phase == "Succeeded" else "")


def _ended(terminated: Mapping[str, Any]) -> str:
    return _with_message(
        f"ended with {terminated.get('exitCode')} ({terminated.get('reason') or 'no reason'})", terminated
    )


def _unscheduled(status: Mapping[str, Any]) -> NoRoom | None:
    for condition in status.get("conditions") or ():
        if (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and condition.get("reason") == "Unschedulable"
        ):
            message = str(condition.get("message") or "")
            # Only the text of the cluster's scheduler distinguishes a lack of resources ("1 Insufficient cpu") from a
            # selector that matches no node.
            return NoRoom(
                _with_message("no node of the cluster accepts it (Unschedulable)", condition), "nsufficient" in message
            )
    return None


def _with_message(text: str, of: Mapping[str, Any]) -> str:
    """Return the text with the cluster's own message."""
    more = one_line(str(of.get("message") or of.get("reason") or ""))
    return f"{text}: {more}" if more and more not in text else text
