"""Serve a model of the Kubernetes API: the calls that make machines, those of kubectl, and `exec`.

`state` holds the cluster's objects. This module reads paths and tokens, causes faults, and records calls, which a judge
may compare with Kubernetes' own API description.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import yaml
from aiohttp import web

from headgate.testing.servers import certificates
from headgate.testing.servers.kubernetes import containers
from headgate.testing.servers.kubernetes.state import KINDS, FakeCluster, No
from headgate.testing.servers.program import free_ports

GROUPS = ("rbac.authorization.k8s.io", "authorization.k8s.io")
"""Groups of the API that discovery names."""
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[\w.]+))/v1(?:/namespaces/(?P<namespace>[\w.-]+))?/(?P<kind>[a-z]+)"
    r"(?:/(?P<name>[\w.:-]+))?(?:/(?P<within>log|exec))?"
)
_SPACE = re.compile(r"/api/v1/namespaces(?:/(?P<name>[\w.-]+))?")
_PROJECT = re.compile(r"/apis/project\.openshift\.io/v1/projects(?:/(?P<name>[\w.-]+))?")
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = {"GET": "get", "POST": "create", "DELETE": "delete"}
"""Method of HTTP -> verb of permissions."""
_KIND_VERBS = ["create", "delete", "get", "list"]
"""Verbs that discovery names for each kind."""


@dataclass(frozen=True, slots=True)
class FakeKubernetesExchange:
    """Record one call with its answer, as the API description expresses it."""

    method: str
    template: str
    query: dict[str, str]
    request: Any
    status: int
    answer: Any


@dataclass(slots=True)
class FakeKubernetesFault:
    """Make the next calls fail whose `METHOD path` matches the pattern."""

    pattern: str
    status: int
    times: int = 1
    done: bool = False
    """Whether the request takes effect and only the answer is lost."""
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    """Reason in the answer of a cluster; empty: the answer is that of a broken proxy in front of it."""


@dataclass(frozen=True, slots=True)
class _Call:
    template: str
    kind: str
    namespace: str
    name: str
    within: str = ""

    @classmethod
    def read(cls, path: str) -> _Call | None:
        # Kubernetes' description does not have OpenShift's paths, so there is no template to judge them by.
        if found := _PROJECT.fullmatch(path):
            return cls("", "namespaces", "", found["name"] or "")
        if found := _SPACE.fullmatch(path):
            return cls(
                "/api/v1/namespaces" + ("/{name}" if found["name"] else ""), "namespaces", "", found["name"] or ""
            )
        found = _PATH.fullmatch(path)
        if found is None or found["kind"] not in KINDS or KINDS[found["kind"]].group != (found["group"] or ""):
            return None
        base = f"/apis/{found['group']}/v1" if found["group"] else "/api/v1"
        within = "/namespaces/{namespace}" if found["namespace"] else ""
        last = ("/{name}" if found["name"] else "") + (f"/{found['within']}" if found["within"] else "")
        template = f"{base}{within}/{found['kind']}{last}"
        return cls(template, found["kind"], found["namespace"] or "", found["name"] or "", found["within"] or "")


@dataclass(slots=True)
class FakeKubernetesServer:
    """Serve requests; `log` has the calls, and `wrong` the errors that the judge found."""

    cluster: FakeCluster
    url: str
    place: Path
    engine: containers.ContainerEngine | None = None
    judge: Callable[[FakeKubernetesExchange], None] | None = None
    log: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    faults: list[FakeKubernetesFault] = field(default_factory=list)

    def kubeconfig(self, **user: Any) -> Path:
        """Write a kubeconfig of the admin or of `user`; return its path."""
        path = self.place / "kubeconfig"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "site", "preferences": {},
            "clusters": [{"name": "one", "cluster": {"server": self.url, "certificate-authority": "ca.pem"}}],
            "users": [{"name": "launcher", "user": user or {"token": self.cluster.admin}}],
            "contexts": [{"name": "site", "context": {"cluster": "one", "user": "launcher"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(config))
        (self.place / "ca.pem").write_text(self.cluster.authority)
        return path

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        method, path = request.method, request.path
        self.log.append(f"{method} {path}")
        fault = next((t for t in self.faults if t.times and re.search(t.pattern, f"{method} {path}")), None)
        if fault is not None:
            fault.times -= 1
            if not fault.done:
                return self._fail(fault)
        # With `done`, the call takes effect first, and only then does its answer get lost.
        answer = await self._answered(request)
        return self._fail(fault) if fault is not None else answer

    def _fail(self, fault: FakeKubernetesFault) -> web.Response:
        if fault.reason:
            body = No(fault.status, fault.reason, f"the server is asked too much ({fault.reason})").body()
            return web.json_response(body, status=fault.status, headers=fault.headers)
        return web.Response(status=fault.status, text="<html>Bad Gateway</html>", headers=fault.headers)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        if known := _discovered(request.path):
            return web.json_response(known)
        call, body, status = _Call.read(request.path), await request.read(), 200
        document = None
        try:
            if body and request.content_type != "application/json":
                raise No(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
            document = json.loads(body) if body else None
            who = self._who(request)
            if request.path == REVIEWS and request.method == "POST":
                status, answer = 201, self._reviewed(who, document)
            elif call is None:
                raise No(404, "NotFound", "the server could not find the requested resource")
            else:
                self._allowed(who, request.method, call)
                if call.within:
                    return await self._stream(request, call)
                # In a thread, since podman starts a pod's containers there.
                status, answer = await asyncio.to_thread(self._done, request, call, document)
        except No as no:
            status, answer = no.status, no.body()
        template = REVIEWS if request.path == REVIEWS else call.template if call else ""
        if template:
            self._judged(
                FakeKubernetesExchange(request.method, template, dict(request.query), document, status, answer)
            )
        return web.json_response(answer, status=status)

    def _who(self, request: web.Request) -> str:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport else None
        # The TLS layer has verified it already.
        if certificate:
            return "admin"
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        who = self.cluster.who(token) if kind == "Bearer" else ""
        if not who:
            raise No(401, "Unauthorized", "Unauthorized")
        return who

    def _allowed(self, who: str, method: str, call: _Call) -> None:
        verb = "list" if method == "GET" and not call.name else _VERBS.get(method, method.lower())
        kind = f"{call.kind}/{call.within}" if call.within else call.kind
        if not self.cluster.may(who, verb, kind, call.namespace):
            where = f' in the namespace "{call.namespace}"' if call.namespace else " at the cluster scope"
            subject = f'{call.kind} "{call.name}" is forbidden' if call.name else f"{call.kind} is forbidden"
            raise No(403, "Forbidden", f'{subject}: User "{who}" cannot {verb} resource "{kind}"{where}')

    def _reviewed(self, who: str, document: Any) -> Any:
        allowed = self.cluster.review(who, document["spec"].get("resourceAttributes") or {})
        return {**document, "metadata": {}, "status": {"allowed": allowed}}

    def _done(self, request: web.Request, call: _Call, document: Any) -> tuple[int, Any]:
        cluster, query = self.cluster, request.query
        match request.method:
            case "GET" if call.name:
                return 200, cluster.get(call.kind, call.namespace, call.name)
            case "GET":
                limit = int(query.get("limit") or 0)
                after, selector = query.get("continue", ""), query.get("labelSelector", "")
                return 200, cluster.all(call.kind, call.namespace, limit, after, selector)
            case "POST" if not call.name:
                return 201, cluster.create(call.kind, call.namespace, document)
            case "DELETE" if call.name:
                # With a precondition, a namesake that was created since is not deleted.
                uid = ((document or {}).get("preconditions") or {}).get("uid", "")
                return 200, cluster.delete(call.kind, call.namespace, call.name, uid)
        raise No(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    async def _stream(self, request: web.Request, call: _Call) -> web.StreamResponse:
        pod = self.cluster.get("pods", call.namespace, call.name)
        if self.engine is None or pod["status"]["phase"] != "Running":
            raise No(400, "BadRequest", f"pod {call.name} does not have a host assigned")
        container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        if call.within == "log":
            log = await self.engine.log(call.namespace, container)
            return web.Response(body=log, content_type="text/plain")
        words = [value for key, value in parse_qsl(request.query_string) if key == "command"]
        return await containers.execute(request, self.engine.command(call.namespace, container, words))

    def _judged(self, exchange: FakeKubernetesExchange) -> None:
        if self.judge is not None:
            try:
                self.judge(exchange)
            except AssertionError as wrong:
                # Raised here, it would only become an answer of the server, so tests read it later.
                self.wrong.append(f"{exchange.method} {exchange.template}: {wrong}")


@asynccontextmanager
async def kubernetes(
    place: Path, engine: containers.ContainerEngine | None = None, *, plain: bool = False
) -> AsyncIterator[FakeKubernetesServer]:
    """Serve a cluster on 127.0.0.1, `plain` or with TLS; with an engine its pods are containers."""
    place.mkdir(parents=True)
    files = certificates.make(place / "certificates")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.authority))
    # As a real API server: a certificate or a token will do.
    tls.verify_mode = ssl.CERT_OPTIONAL
    tls.load_cert_chain(files.server)
    cluster, (port,) = FakeCluster(files.authority.read_text()), free_ports(1)
    if engine is not None:
        cluster.images |= engine.images
        cluster.run, cluster.stop = engine.run, engine.stop
    server = FakeKubernetesServer(cluster, f"{'http' if plain else 'https'}://127.0.0.1:{port}", place, engine)
    app = web.Application(client_max_size=8 << 20)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=None if plain else tls).start()
        yield server
    finally:
        await runner.cleanup()


def _discovered(path: str) -> dict[str, Any] | None:
    """Return the discovery document of a path: versions and kinds."""
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
        {
            "name": name,
            "singularName": kind.name.lower(),
            "namespaced": kind.within,
            "kind": kind.name,
            "verbs": _KIND_VERBS,
        }
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
