"""Call the parts of the Kubernetes API that machines need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from headgate.adapters.nodes.clouds.http import ANSWER_MAX_S, Http, one_line, patience_s
from headgate.adapters.nodes.clouds.kubernetes.kubeconfig import Cluster, KubernetesCredentials
from headgate.adapters.responses import cautious_client
from headgate.base.errors import CloudError
from headgate.ports.clouds import CloudUnavailable

PAGE_SIZE = 500
PAGES_MAX = 1_000
BEGUN_AGAIN_MAX = 3
"""Attempts to read a list from the beginning, because its continue token can expire."""
CORE, ROLES, REVIEWS = "/api/v1", "/apis/rbac.authorization.k8s.io/v1", "/apis/authorization.k8s.io/v1"
_AGAIN_S = 1.0
_PATIENCE = (429, 503)


class KubernetesRefused(CloudError):
    """Report that the cluster rejects a request; the text is the cluster's."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Exists(KubernetesRefused):
    """Report that an object with that name exists."""


class Api:
    """Call one cluster. Every method raises KubernetesRefused, or CloudUnavailable if there is no response."""

    def __init__(self, cluster: Cluster) -> None:
        """Take the cluster. Raise UserError for unreadable certificates."""
        self._cluster = cluster
        self._http = _ClusterHttp(cluster)
        self._credentials = KubernetesCredentials(cluster)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def get(self, path: str) -> dict[str, Any] | None:
        """Return the object; None if it does not exist."""
        status, answer = await self._ask("GET", path)
        return None if status == 404 else answer

    async def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object and return it. Raise Exists."""
        status, answer = await self._ask("POST", path, document)
        if status == 404:
            raise _refused(status, answer)
        return answer

    async def delete(self, path: str, unique: str) -> None:
        """Delete the object and everything in it, unless its uid is not `unique`."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": unique},
        }
        try:
            await self._ask("DELETE", path, options)
        except KubernetesRefused as refused:
            # A conflict means that the uid differs: this is another object with the same name, which must stay.
            if refused.status != 409:
                raise

    async def every(self, path: str) -> list[dict[str, Any]]:
        """Return all pages of a list; begin again if its continue token has expired."""
        for _ in range(BEGUN_AGAIN_MAX):
            try:
                return await self._pages(path)
            except KubernetesRefused as refused:
                if refused.status != 410:
                    raise
        raise CloudUnavailable(
            f"{self._cluster.server}: the list of {path} changes faster than it can be read", _AGAIN_S
        )

    async def _pages(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": PAGE_SIZE}
        for _ in range(PAGES_MAX):
            status, answer = await self._ask("GET", f"{path}?{urlencode(query)}")
            if status == 404:
                raise _refused(status, answer)
            items, more = answer.get("items"), (answer.get("metadata") or {}).get("continue")
            # Go encodes an empty list as null. Any other value is not a list; if it counted as an empty one, namespaces
            # would seem to be gone.
            if "items" not in answer or not isinstance(items, list | None):
                raise CloudUnavailable(f"{self._cluster.server}: {path} is not a list")
            found += items or []
            if not more:
                return found
            query = {"limit": PAGE_SIZE, "continue": more}
        raise CloudUnavailable(f"{self._cluster.server}: {path} has more than {PAGES_MAX} pages")

    async def _ask(
        self, method: str, path: str, document: Mapping[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Send a request with credentials and return the response; its status may be 404."""
        credentials = await self._credentials.headers()
        status, answer = await self._send(method, path, document, credentials)
        # A plugin's token may expire early, so one more request is made with a new one.
        if status == 401 and self._credentials.refused(credentials):
            status, answer = await self._send(method, path, document, await self._credentials.headers())
        if status == 401:
            raise CloudUnavailable(f"{self._cluster.server} does not accept the credentials: {_words(status, answer)}")
        if status == 409 and answer.get("reason") != "AlreadyExists" and method == "POST":
            # Another writer, for example of a quota, was faster. That is no error, and a later attempt may succeed.
            raise CloudUnavailable(f"{self._cluster.server}: {_words(status, answer)}", _AGAIN_S)
        if status >= 400 and status != 404:
            raise _refused(status, answer)
        return status, answer

    async def _send(
        self, method: str, path: str, document: Mapping[str, Any] | None, credentials: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Accept": "application/json", **credentials}
        body = b""
        if document is not None:
            headers["Content-Type"], body = "application/json", json.dumps(document).encode()
        found = await self._http.ask(method, f"{self._cluster.server}{path}", headers, body)
        try:
            answer = json.loads(found.body or b"{}")
        except (ValueError, RecursionError):
            answer = None
        words = _words(found.status, answer if isinstance(answer, dict) else {})
        if found.status in _PATIENCE:
            raise CloudUnavailable(f"{self._cluster.server} asks Headgate to wait: {words}", patience_s(found.headers))
        if found.status >= 500:
            raise CloudUnavailable(f"{self._cluster.server} fails: {words}")
        # For example the login page of a proxy.
        if not isinstance(answer, dict) or 300 <= found.status < 400:
            raise CloudUnavailable(
                f"{self._cluster.server} returned status {found.status}, but does not look like Kubernetes: "
                "is the address correct?"
            )
        return found.status, answer


def path(base: str, kind: str, name: str = "", namespace: str = "") -> str:
    """Return the path of an object, or of all objects of its kind."""
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{base}{within}/{kind}" + (f"/{quote(name, safe='')}" if name else "")


def _words(status: int, answer: Mapping[str, Any]) -> str:
    return one_line(str(answer.get("message") or answer.get("reason") or f"it returned status {status}"))


def _refused(status: int, answer: Mapping[str, Any]) -> KubernetesRefused:
    kind = Exists if status == 409 and answer.get("reason") == "AlreadyExists" else KubernetesRefused
    return kind(status, str(answer.get("reason") or ""), _words(status, answer))


class _ClusterHttp(Http):
    """Apply a kubeconfig's settings for certificates and proxies."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._tls = cluster.tls() if cluster.server.startswith("https:") else False

    def made(self) -> httpx.AsyncClient:
        """Make an HTTP client with the kubeconfig's settings."""
        called = self._cluster.called

        async def name(request: httpx.Request) -> None:
            # httpx checks the certificate against this name too; it has no setting for it on the client.
            request.extensions["sni_hostname"] = called

        hooks = {"request": [name]} if called else {}
        return cautious_client(ANSWER_MAX_S, self._tls, proxy=self._cluster.proxy or None, event_hooks=hooks)
