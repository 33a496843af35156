"""The token of requests, possibly from a program whose tokens expire."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from headgate.adapters.nodes.clouds.http import one_line
from headgate.adapters.nodes.clouds.kubernetes.kubeconfig import Cluster
from headgate.base.pipes import OutputTooLarge, communicate, put_down
from headgate.ports.cloud import CloudUnavailable

PLUGIN_MAX_S = 30.0
PLUGIN_MAX_BYTES = 2**20
EARLY_S = 60.0
"""A token is renewed this long before it expires."""


class KubernetesCredentials:
    """Supply the headers of requests to one cluster."""

    def __init__(self, cluster: Cluster, now_s: Callable[[], float] = time.time) -> None:
        self._cluster, self._now_s = cluster, now_s
        self._turn = asyncio.Lock()
        self._token, self._until_s = "", 0.0

    async def headers(self) -> dict[str, str]:
        """Return the headers with the credentials. Raise CloudUnavailable."""
        user = self._cluster.user
        if user.name_and_password is not None:
            encoded = base64.b64encode(":".join(user.name_and_password).encode()).decode()
            return {"Authorization": f"Basic {encoded}"}
        if user.token_file is not None:
            try:
                return {"Authorization": f"Bearer {user.token_file.read_text().strip()}"}
            except (OSError, UnicodeDecodeError) as error:
                raise CloudUnavailable(f"the token for {self._cluster.server} cannot be read: {error}") from error
        if user.plugin is None:
            return {"Authorization": f"Bearer {user.token}"} if user.token else {}
        # A plugin takes seconds, so one run serves all requests that wait.
        async with self._turn:
            if not self._token or self._until_s < self._now_s() + EARLY_S:
                self._token, self._until_s = await self._run_plugin(user.plugin)
            return {"Authorization": f"Bearer {self._token}"}

    def refused(self, used: Mapping[str, str]) -> bool:
        """Discard the credentials of a request, its headers, that a cluster refuses; return whether there may be
        better ones."""
        user = self._cluster.user
        if user.plugin is None or user.name_and_password is not None or user.token_file is not None:
            return False
        # Of several requests with one token, only the first discards it: by the answer to the next ones, there may be
        # another.
        if used.get("Authorization") == f"Bearer {self._token}":
            self._token = ""
        return True

    async def _run_plugin(self, plugin: Mapping[str, Any]) -> tuple[str, float]:
        """Return the token from the output of the program, and its expiry time."""
        # As kubectl runs it: in our environment with the kubeconfig's additions, and with nobody there to answer
        # questions.
        command = [str(plugin["command"]), *(str(word) for word in plugin.get("args") or ())]
        version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
        request = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        more = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE,
                env={**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            )  # fmt: skip
        except OSError as error:
            raise CloudUnavailable(f"{command[0]}, which says the token, cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(PLUGIN_MAX_S):
                answer, wrong = await communicate(process, b"", PLUGIN_MAX_BYTES)
        except (TimeoutError, OutputTooLarge) as error:
            raise CloudUnavailable(f"{command[0]} does not say the token: {type(error).__name__}") from error
        finally:
            await put_down(process)
        if process.returncode:
            raise CloudUnavailable(
                f"{command[0]} ended with {process.returncode}: {one_line(wrong.decode(errors='replace'))}"
            )
        return _read(command[0], answer)


def _read(program: str, answer: bytes) -> tuple[str, float]:
    """Raise CloudUnavailable."""
    try:
        status = json.loads(answer)["status"]
        token, end = str(status.get("token") or ""), status.get("expirationTimestamp")
        until_s = datetime.fromisoformat(str(end)).timestamp() if end else float("inf")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CloudUnavailable(f"{program} does not answer as a credential plugin of Kubernetes") from error
    if not token:
        raise CloudUnavailable(f"{program} gives no token; client certificates of plugins are not supported")
    return token, until_s
