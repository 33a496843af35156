"""Hold the objects of a modelled cluster, which appear slowly, as in a real one."""

from __future__ import annotations

import base64
import copy
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

CREATED = "2026-11-01T08:00:00Z"
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
Thing = dict[str, Any]


class FakeKubernetesKind(NamedTuple):
    """Describe one kind of objects."""

    name: str
    group: str
    """API group; empty: the core group."""
    within: bool = True
    """Whether the resource is namespaced."""

    @property
    def version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"


KINDS = {
    "namespaces": FakeKubernetesKind("Namespace", "", False),
    "serviceaccounts": FakeKubernetesKind("ServiceAccount", ""),
    "secrets": FakeKubernetesKind("Secret", ""),
    "pods": FakeKubernetesKind("Pod", ""),
    "configmaps": FakeKubernetesKind("ConfigMap", ""),
    "roles": FakeKubernetesKind("Role", "rbac.authorization.k8s.io"),
    "rolebindings": FakeKubernetesKind("RoleBinding", "rbac.authorization.k8s.io"),
}


class No(Exception):
    """Report a refusal as a cluster words it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    def body(self) -> Thing:
        """Return the body of the answer."""
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.status,
        }  # fmt: skip


@dataclass(slots=True)
class FakeKubernetesPace:
    """Set the number of reads that each step takes."""

    reviews: int = 1
    """Number of access reviews that are denied in a new namespace."""
    token: int = 1
    accounts: int = 1
    """Number of pods that a new namespace refuses, as its service account does not exist yet."""
    pods: int = 1
    deleting: int = 2


Run = Callable[[Thing], Mapping[str, Any]]
"""Starts the containers of a pod; returns its status."""


@dataclass(slots=True)
class FakeCluster:
    """Hold objects by kind, namespace and name. `admin` is the token that permits everything."""

    authority: str
    """Certificate of the authority as PEM, which accounts find as `ca.crt`."""
    admin: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    pace: FakeKubernetesPace = field(default_factory=FakeKubernetesPace)
    images: set[str] = field(default_factory=lambda: {"machine:1"})
    """Images that can be pulled."""
    cores: float = 4.0
    """Processor cores of the only node."""
    pods_max: int | None = None
    """Quota of pods in a namespace; None: no quota."""
    denied: set[str] = field(default_factory=set)
    """Requests that are denied even to the admin, as `VERB KIND`."""
    forgets_pages: int = 0
    """Number of continued lists that fail because their token has expired."""
    run: Run | None = None
    """Runs the containers of pods; None: pods have no processes."""
    stop: Callable[[str], None] = lambda namespace: None
    things: dict[tuple[str, str, str], Thing] = field(default_factory=dict)
    _looks: dict[str, int] = field(default_factory=dict)
    _version: int = 1

    # --- what callers do

    def get(self, kind: str, namespace: str, name: str) -> Thing:
        """Return an object in the state of this read."""
        found = self._found(kind, namespace, name)
        # Things appear when somebody looks, not by a clock: tests need no pauses and end alike on slow machines.
        self._age(kind, namespace, found)
        # Found again, as the last look may have ended it; copied, so that callers do not change what the cluster has.
        return copy.deepcopy(self._found(kind, namespace, name))

    def all(self, kind: str, namespace: str, limit: int, after: str, selector: str) -> Thing:
        """Return one page of the objects."""
        if after and self.forgets_pages:
            self.forgets_pages -= 1
            raise No(410, "Expired", "The provided continue parameter is too old to display a consistent list result.")
        # Opaque in appearance, as a real token is, so that no client calculates with it.
        first = int(base64.b64decode(after)) if after else 0
        wanted = dict(one.split("=", 1) for one in selector.split(",") if one)
        every = [
            thing
            for (thing_kind, where, _), thing in sorted(self.things.items())
            if thing_kind == kind and namespace in ("", where)
            and wanted.items() <= (thing["metadata"].get("labels") or {}).items()
        ]  # fmt: skip
        last = first + limit if limit else len(every)
        about: Thing = {"resourceVersion": str(self._version)}
        if last < len(every):
            about |= {
                "continue": base64.b64encode(str(last).encode()).decode(),
                "remainingItemCount": len(every) - last,
            }
        resource = KINDS[kind]
        items = copy.deepcopy(every[first:last])
        return {"apiVersion": resource.version, "kind": f"{resource.name}List", "metadata": about, "items": items}

    def create(self, kind: str, namespace: str, manifest: Thing) -> Thing:
        """Make an object as its manifest describes it."""
        resource, name = KINDS[kind], manifest.get("metadata", {}).get("name", "")
        if not name:
            raise No(422, "Invalid", f"{resource.name} is invalid: metadata.name: Required value: name is required")
        if resource.within:
            self._open(kind, namespace, name)
        if (kind, namespace, name) in self.things:
            raise No(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if kind == "pods":
            self._admit(namespace, name, manifest)
        made = copy.deepcopy(manifest)
        made |= {"apiVersion": resource.version, "kind": resource.name}
        about = {"uid": str(uuid4()), "creationTimestamp": CREATED, "resourceVersion": str(self._next())}
        made["metadata"] |= about | ({"namespace": namespace} if resource.within else {})
        if kind == "namespaces":
            made |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        if kind == "pods":
            made["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        self.things[kind, namespace, name] = made
        return copy.deepcopy(made)

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> Thing:
        """Delete an object. A namespace takes a while, and everything in it is deleted with it."""
        found = self._found(kind, namespace, name)
        about = found["metadata"]
        if uid and uid != about["uid"]:
            text = f"the UID in the precondition ({uid}) does not match the UID in record ({about['uid']})."
            raise No(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": Precondition failed: {text}')
        if kind == "namespaces":
            if "deletionTimestamp" not in about:
                about["deletionTimestamp"] = CREATED
                # Reads before the deletion do not count towards its duration.
                self._looks[about["uid"]] = 0
                found["status"] = {"phase": "Terminating"}
            return _deleted(kind, found)
        del self.things[kind, namespace, name]
        return _deleted(kind, found)

    def review(self, who: str, attributes: Mapping[str, Any]) -> bool:
        """Return whether a user may perform a request; in a new namespace not even the admin may at first."""
        namespace = str(attributes.get("namespace", ""))
        new = who == "admin" and ("namespaces", "", namespace) in self.things
        if new and self._look(f"review {namespace}") <= self.pace.reviews:
            return False
        within = (
            f"{attributes.get('resource')}/{attributes['subresource']}"
            if attributes.get("subresource")
            else attributes.get("resource")
        )
        return self.may(who, str(attributes.get("verb")), str(within), namespace)

    # --- who may what

    def who(self, token: str) -> str:
        """Return `admin`, `NAMESPACE:ACCOUNT`, or nobody."""
        if secrets.compare_digest(token.encode(), self.admin.encode()):
            return "admin"
        encoded = base64.b64encode(token.encode()).decode()
        for (kind, namespace, _), thing in self.things.items():
            if (
                kind == "secrets"
                and thing.get("type") == ACCOUNT_TOKEN
                and thing.get("data", {}).get("token") == encoded
            ):
                return f"{namespace}:{thing['metadata']['annotations']['kubernetes.io/service-account.name']}"
        return ""

    def may(self, who: str, verb: str, kind: str, namespace: str) -> bool:
        """Return whether roles and their bindings allow the request."""
        if who == "admin":
            return f"{verb} {kind}" not in self.denied
        group = KINDS[kind].group if kind in KINDS else ""
        return any(
            verb in rule["verbs"] and kind in rule["resources"] and group in rule["apiGroups"]
            for rule in self._rules(who, namespace)
        )

    def _rules(self, who: str, namespace: str) -> Iterator[Thing]:
        space, _, account = who.partition(":")
        for (kind, where, _), binding in list(self.things.items()):
            if kind == "rolebindings" and where == namespace:
                subjects = [(one["kind"], one.get("namespace"), one["name"]) for one in binding.get("subjects") or ()]
                role = self.things.get(("roles", namespace, binding["roleRef"]["name"]))
                if ("ServiceAccount", space, account) in subjects and role is not None:
                    yield from role.get("rules") or ()

    # --- how things appear

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _look(self, what: str) -> int:
        self._looks[what] = self._looks.get(what, 0) + 1
        return self._looks[what]

    def _found(self, kind: str, namespace: str, name: str) -> Thing:
        found = self.things.get((kind, namespace, name))
        if found is None:
            raise No(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def _open(self, kind: str, namespace: str, name: str) -> None:
        space = self._found("namespaces", "", namespace)
        if "deletionTimestamp" in space["metadata"]:
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise No(403, "Forbidden", f'{kind} "{name}" is forbidden: {text}')

    def _admit(self, namespace: str, name: str, manifest: Thing) -> None:
        if not manifest.get("spec", {}).get("containers"):
            raise No(422, "Invalid", f'Pod "{name}" is invalid: spec.containers: Required value')
        # A real cluster words it like this while its controller has not made the account yet.
        if self._look(f"accounts {namespace}") <= self.pace.accounts:
            text = f'error looking up service account {namespace}/default: serviceaccount "default" not found'
            raise No(403, "Forbidden", f'pods "{name}" is forbidden: {text}')
        used = sum(1 for kind, where, _ in self.things if (kind, where) == ("pods", namespace))
        if self.pods_max is not None and used >= self.pods_max:
            text = f"exceeded quota: small, requested: pods=1, used: pods={used}, limited: pods={self.pods_max}"
            raise No(403, "Forbidden", f'pods "{name}" is forbidden: {text}')

    def _age(self, kind: str, namespace: str, found: Thing) -> None:
        about = found["metadata"]
        looks = self._look(about["uid"])
        if kind == "namespaces" and "deletionTimestamp" in about and looks > self.pace.deleting:
            self.stop(about["name"])
            # The namespace itself, whose own namespace is "", and everything within.
            for key in [key for key in self.things if about["name"] in (key[1], key[2] if not key[1] else "")]:
                del self.things[key]
        if kind == "secrets" and found.get("type") == ACCOUNT_TOKEN and looks > self.pace.token:
            token = {"token": secrets.token_urlsafe(24), "ca.crt": self.authority, "namespace": namespace}
            found.setdefault("data", {name: base64.b64encode(value.encode()).decode() for name, value in token.items()})
        if kind == "pods" and looks > self.pace.pods and found["status"]["phase"] == "Pending":
            found["status"] |= self._begun(namespace, found)

    def _begun(self, namespace: str, pod: Thing) -> Mapping[str, Any]:
        """Return the status that scheduler and node give the pod."""
        every = pod["spec"]["containers"]
        wanted = sum(_cores(one.get("resources", {}).get("requests", {}).get("cpu", "0")) for one in every)
        if wanted > self.cores:
            return _unscheduled("0/1 nodes are available: 1 Insufficient cpu. preemption: No preemption victims found.")
        if pod["spec"].get("nodeSelector"):
            return _unscheduled("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.")
        pod["spec"]["nodeName"] = "worker-1"
        for one in every:
            if one.get("image") not in self.images:
                reason = "ErrImagePull" if self._look(f"pull {pod['metadata']['uid']}") < 2 else "ImagePullBackOff"
                text = f'Back-off pulling image "{one.get("image")}"'
                return status("Pending", pod, waiting={"reason": reason, "message": text})
            for source in (env.get("valueFrom", {}).get("configMapKeyRef") for env in one.get("env") or ()):
                if source and ("configmaps", namespace, source["name"]) not in self.things:
                    text = f'configmap "{source["name"]}" not found'
                    return status("Pending", pod, waiting={"reason": "CreateContainerConfigError", "message": text})
        return self.run(pod) if self.run else _played(pod)


def _deleted(kind: str, found: Thing) -> Thing:
    """Return the answer to a deletion: for some kinds the object, as Kubernetes' API description says."""
    if kind in ("pods", "serviceaccounts"):
        return copy.deepcopy(found)
    details = {"name": found["metadata"]["name"], "kind": kind, "uid": found["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def status(phase: str, pod: Thing, **state: Any) -> Thing:
    """Return the status of a pod whose containers are all alike."""
    every = [
        {
            "name": one["name"], "image": one["image"], "imageID": "", "restartCount": 0,
            "ready": "running" in state, "state": copy.deepcopy(state),
        }
        for one in pod["spec"]["containers"]
    ]  # fmt: skip
    return {"phase": phase, "podIP": "10.244.0.7", "containerStatuses": every}


def running() -> Thing:
    """Return the state of a container that runs."""
    return {"running": {"startedAt": CREATED}}


def _played(pod: Thing) -> Thing:
    """Return the phase of a pod without processes: `true` and `false` end, all others run."""
    command = (pod["spec"]["containers"][0].get("command") or ["sleep"])[0]
    if command not in ("true", "false"):
        return status("Running", pod, **running())
    code = int(command == "false")
    if pod["spec"].get("restartPolicy", "Always") != "Never":
        text = "back-off 10s restarting failed container"
        return status("Running", pod, waiting={"reason": "CrashLoopBackOff", "message": text})
    ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
    return status("Failed" if code else "Succeeded", pod, terminated=ended)


def _unscheduled(message: str) -> Thing:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def _cores(quantity: str) -> float:
    return float(quantity[:-1]) / 1_000 if quantity.endswith("m") else float(quantity)
