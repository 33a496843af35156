"""Provide pods and namespaces of a Kubernetes cluster as nodes."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headgate.adapters.nodes.clouds.http import understood
from headgate.adapters.nodes.clouds.kubernetes import kubeconfig, objects
from headgate.adapters.nodes.clouds.kubernetes.api import CORE, REVIEWS, Api, Exists, KubernetesRefused, path
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.ports import clouds

PROJECTS = "/apis/project.openshift.io/v1"
SECRET = "kubernetes"
"""Key in `Made.secrets` for the access of a build to the cluster."""
ROOM_MAX_S = 120.0
"""Time for which a pod that does not fit may wait for the cluster to grow."""
_STEP, _SINCE = "step", "no_room_since"
_NAMESPACE, _RIGHTS, _POD = "namespace", "rights", "pod"


class Kubernetes:
    """Drive one cluster; see `ports.clouds.Cloud`."""

    def __init__(
        self,
        cluster: kubeconfig.Cluster,
        *,
        projects: bool = False,
        room_max_s: float = ROOM_MAX_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Take the cluster; `projects`: use OpenShift's projects instead of namespaces.  Raise UserError for unreadable
        certificates."""
        self._cluster, self._projects = cluster, projects
        self._room_max_s, self._now_s = room_max_s, now_s
        self._api = Api(cluster)

    async def close(self) -> None:
        """Close all connections to the cluster."""
        await self._api.close()

    async def uses(self, wanted: clouds.MachineSpec) -> clouds.Amounts:
        """Return the resources of a node: every pod has its own namespace."""
        return _uses(objects.kind_of(wanted))

    async def limits(self, provider: Mapping[str, Any]) -> clouds.Amounts:
        """Return no limits: a cluster has none for all namespaces; the provider has `resource-limits`."""
        return {}

    @understood
    async def resources(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return every namespace of the cluster."""
        try:
            return [_resource(one) for one in await self._api.every(self._spaces())]
        except KubernetesRefused as refused:
            raise clouds.CloudUnavailable(f"the namespaces cannot be listed: {refused}") from refused

    async def delete(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Delete the namespace, unless it now belongs to another node."""
        try:
            found = await self._api.get(self._spaces(resource.id))
        except KubernetesRefused as refused:
            raise clouds.CloudUnavailable(f"the namespace {resource.id} cannot be read: {refused}") from refused
        # Another installation may have made a namespace with this name since the list was read.
        if found is not None and objects.tags_of(found).get(clouds.NODE_TAG) == resource.tags.get(clouds.NODE_TAG):
            await self._drop(found)

    @understood
    async def remove(self, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        """Delete the node's namespace, with everything that was made for it; return True once it is gone."""
        try:
            found = await self._api.get(self._spaces(objects.name_of(wanted.node)))
        except KubernetesRefused as refused:
            raise clouds.CloudUnavailable(
                f"the namespace {objects.name_of(wanted.node)} cannot be read: {refused}"
            ) from refused
        # If it is not Headgate's, `_begin` failed because of that, and nothing was made.
        if found is None or not objects.ours(wanted, found):
            return True
        await self._drop(found)
        return False

    @understood
    async def advance(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        """Create the missing parts; an earlier attempt may have made some."""
        kind, name = objects.kind_of(wanted), objects.name_of(wanted.node)
        with _cluster_errors(name):
            step = state.get(_STEP, "")
            if not step:
                await self._begin(wanted)
                step = _NAMESPACE
            if step == _NAMESPACE:
                # On OpenShift, for example, a new project gets its rights only after a moment.
                if not await self._may(wanted):
                    return clouds.MachinePending(
                        {_STEP: _NAMESPACE}, f"Headgate has no rights in the new namespace {name} yet"
                    )
                await self._give(wanted)
                step = _RIGHTS
            if step == _RIGHTS and kind == objects.POD:
                if why := await self._pod(wanted):
                    return clouds.MachinePending({_STEP: _RIGHTS}, why)
                step = _POD
            return await self._seen(wanted, {**state, _STEP: step})

    async def _drop(self, found: Mapping[str, Any]) -> None:
        """Delete the namespace. Raise LaunchFailed, CloudUnavailable."""
        about = found["metadata"]
        if not about.get("deletionTimestamp"):
            try:
                # By its uid, so that a namespace that has replaced it in the meantime stays.
                await self._api.delete(self._spaces(about["name"]), str(about["uid"]))
            except KubernetesRefused as refused:
                raise clouds.LaunchFailed(f"the namespace {about['name']} cannot be deleted: {refused}") from refused

    async def _begin(self, wanted: clouds.MachineSpec) -> None:
        """Make the namespace, unless an earlier attempt made it. Raise LaunchFailed if the name is in use."""
        where = self._spaces(objects.name_of(wanted.node))
        if (found := await self._api.get(where)) is None:
            try:
                found = await self._api.create(self._spaces(), objects.namespace(wanted, self._projects))
            except Exists:
                found = await self._api.get(where)
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise clouds.LaunchFailed(f"another user is deleting the namespace {objects.name_of(wanted.node)}")
        if not objects.ours(wanted, found):
            raise clouds.LaunchFailed(f"the namespace {objects.name_of(wanted.node)} exists, but is not Headgate's")

    async def _may(self, wanted: clouds.MachineSpec) -> bool:
        found = await self._api.create(path(REVIEWS, "selfsubjectaccessreviews"), objects.review(wanted))
        return (found.get("status") or {}).get("allowed") is True

    async def _give(self, wanted: clouds.MachineSpec) -> None:
        """Make the account, its rights and token, and copies of the pull secrets."""
        name = objects.name_of(wanted.node)
        for one in objects.pull_secrets(wanted):
            source = str(one.get("namespace") or "default")
            secret = await self._api.get(path(CORE, "secrets", str(one["name"]), source))
            if secret is None:
                raise clouds.LaunchFailed(f"the pull secret {one['name']} is not in the namespace {source}")
            await self._have(path(CORE, "secrets", namespace=name), objects.copied(secret))
        for where, manifest in objects.rights(wanted):
            await self._have(where, manifest)

    async def _pod(self, wanted: clouds.MachineSpec) -> str:
        """Create the pod; return what it still waits for, or an empty string once it is created."""
        try:
            await self._have(path(CORE, "pods", namespace=objects.name_of(wanted.node)), objects.pod(wanted))
        except KubernetesRefused as refused:
            # A controller of the cluster makes the account `default` some time after the namespace, and pods are not
            # admitted without it.
            if refused.status == 403 and "serviceaccount" in str(refused) and "not found" in str(refused):
                return "the new namespace has no account for pods yet"
            raise
        return ""

    async def _have(self, where: str, manifest: Mapping[str, Any]) -> None:
        try:
            await self._api.create(where, manifest)
        except Exists:  # from an earlier attempt: no other program writes into this namespace
            return

    async def _seen(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        """Return the machine if the token and the pod are ready, otherwise what they wait for. Raise LaunchFailed."""
        name = objects.name_of(wanted.node)
        up: objects.Up | None = None
        if objects.kind_of(wanted) == objects.POD:
            pod = await self._api.get(path(CORE, "pods", name, name))
            if pod is None:
                raise clouds.LaunchFailed(f"the pod {name} is gone")
            match objects.reported(pod):
                case objects.KubernetesPodEnded(why):
                    raise clouds.LaunchFailed(why)
                case objects.NoRoom() as none:
                    return self._waiting(none, state)
                case objects.Coming(why):
                    return clouds.MachinePending(_without(state, _SINCE), why)
                case objects.Up() as seen:
                    up = seen
        secret = await self._api.get(path(CORE, "secrets", objects.ACCOUNT, name))
        if secret is None:
            raise clouds.LaunchFailed(f"the token of the account {objects.ACCOUNT} is gone")
        data = secret.get("data") or {}
        # A controller of the cluster fills the secret after its creation.
        if not data.get("token") or not data.get("ca.crt"):
            return clouds.MachinePending(_without(state, _SINCE), f"the account {objects.ACCOUNT} has no token yet")
        return self._made(wanted, state, up, data)

    def _waiting(self, none: objects.NoRoom, state: clouds.State) -> clouds.MachinePending:
        """Return that the pod waits for capacity. Raise OverQuota or LaunchFailed once the cluster had enough time to
        grow."""
        since_s = float(state.get(_SINCE) or self._now_s())
        if self._now_s() - since_s < self._room_max_s:
            return clouds.MachinePending({**state, _SINCE: repr(since_s)}, none.why)
        # Lack of capacity is not the node's fault; an impossible request, such as a selector that matches no machine,
        # is.
        raise (clouds.OverQuota if none.lacking else clouds.LaunchFailed)(none.why)

    def _made(
        self, wanted: clouds.MachineSpec, state: clouds.State, up: objects.Up | None, data: Mapping[str, str]
    ) -> clouds.Made:
        name, cluster = objects.name_of(wanted.node), self._cluster.name
        context = f"{name}:{objects.ACCOUNT}/{cluster}"
        try:
            token, authority = (base64.b64decode(data[key]).decode() for key in ("token", "ca.crt"))
        except ValueError as error:
            raise clouds.LaunchFailed(f"the token of the account {objects.ACCOUNT} cannot be read") from error
        secret = {
            "server": self._cluster.server,
            "cluster": cluster,
            "authority": authority if self._cluster.verified else "",
            "verified": self._cluster.verified,
            "called": self._cluster.called,
            "namespace": name,
            "user": f"{name}:{objects.ACCOUNT}",
            "context": context,
            "token": token,
        }
        resources = {"namespace": name, "context": context, **({"pod": name, "container": up.container} if up else {})}
        return clouds.Made(
            name,
            _without(state, _SINCE),
            _host(wanted, context, up) if up else None,
            {"cloud": cluster, **_where(up)} if up else {"cloud": cluster},
            resources,
            {SECRET: secret},
        )

    def _spaces(self, name: str = "") -> str:
        return path(PROJECTS, "projects", name) if self._projects else path(CORE, "namespaces", name)


def _host(wanted: clouds.MachineSpec, context: str, up: objects.Up) -> dict[str, Any]:
    """Return the variables with which Ansible reaches the pod: through the cluster, unless the image sets another
    connection."""
    name, image = objects.name_of(wanted.node), wanted.image
    variables: dict[str, Any] = {}
    if image.get("username"):
        variables["ansible_user"] = image["username"]
    if image.get("connection-type", "kubectl") != "kubectl":
        port = {"ansible_port": image["connection-port"]} if image.get("connection-port") else {}
        return {**variables, "ansible_connection": image["connection-type"], "ansible_host": up.address, **port}
    return {
        **variables,
        "ansible_connection": "kubernetes.core.kubectl",
        "ansible_host": name,
        "ansible_kubectl_pod": name,
        "ansible_kubectl_namespace": name,
        "ansible_kubectl_container": up.container,
        "ansible_kubectl_context": context,
    }


def _where(up: objects.Up) -> dict[str, Any]:
    return {"host_id": up.host, "interface_ip": up.address, "private_ipv4": up.address}


def _uses(kind: str) -> dict[str, float]:
    return {"namespaces": 1, "pods": 1} if kind == objects.POD else {"namespaces": 1}


def _resource(found: Mapping[str, Any]) -> clouds.Resource:
    tags = objects.tags_of(found)
    return clouds.Resource(found["metadata"]["name"], "namespace", tags, _uses(tags.get(objects.KIND_TAG, "")))


def _without(state: clouds.State, key: str) -> dict[str, str]:
    return {name: value for name, value in state.items() if name != key}


@contextmanager
def _cluster_errors(name: str) -> Iterator[None]:
    """Translate a refusal of the cluster into an error of the port."""
    try:
        yield
    except KubernetesRefused as refused:
        text = str(refused)
        # Kubernetes has no separate code for an exceeded quota, only this text.
        if refused.status == 403 and "quota" in text:
            raise clouds.OverQuota(text) from refused
        if refused.status == 404:
            raise clouds.LaunchFailed(f"the namespace {name} is gone: {text}") from refused
        raise clouds.LaunchFailed(f"the cluster refuses a request: {text}") from refused


def connect(given: CloudDriverOptions) -> Kubernetes:
    """Connect to the cluster. Raise UserError for an unreadable kubeconfig."""
    options = given.options
    file = given.directory / options["kubeconfig_file"] if options.get("kubeconfig_file") else None
    cluster = kubeconfig.found(file, options.get("context", ""))
    projects = options.get("use_openshift_projects", "").lower() in ("true", "yes", "on", "1")
    return Kubernetes(cluster, projects=projects, room_max_s=float(options.get("room_timeout") or ROOM_MAX_S))
