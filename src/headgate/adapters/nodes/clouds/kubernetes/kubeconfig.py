"""Find a cluster and its credentials, in a kubeconfig or in the launcher's own pod, and renew the token."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import ssl
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from headgate.adapters.nodes.clouds.http import one_line
from headgate.base.certificates import set_identity
from headgate.base.errors import UserError
from headgate.base.files import bytes_of, reason, text_of
from headgate.base.pipes import OutputTooLarge, communicate, put_down
from headgate.base.texts import yaml_fault
from headgate.ports.clouds import CloudUnavailable

POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in every pod with `token`, `ca.crt` and `namespace`."""
FILE_SIZE_MAX_BYTES = 2**20
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
PLUGIN_MAX_S = 30.0
PLUGIN_MAX_BYTES = 2**20
EARLY_S = 60.0
"""Time before its expiry at which a token is renewed."""


@dataclass(frozen=True, slots=True)
class KubernetesUser:
    """Hold the user's credentials, of which at most one kind is set."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """Path of a token; it is read again for each request, because clusters replace its content."""
    name_and_password: tuple[str, str] | None = field(default=None, repr=False)
    plugin: Mapping[str, Any] | None = field(default=None, repr=False)
    """Program that prints the token: `command`, `args`, `env`."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Describe one cluster and the user who calls it."""

    server: str
    """URL of the server, without a trailing slash."""
    name: str
    """Name of the cluster in the contexts of builds."""
    user: KubernetesUser
    authority: str = ""
    """Certificates of authorities, in PEM; empty: the authorities that this machine trusts."""
    verified: bool = True
    called: str = ""
    """Host name in the server's certificate, if it differs from the URL's."""
    proxy: str = ""
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """The client's certificate and its key, in PEM."""

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context. Raise UserError."""
        try:
            made = ssl.create_default_context(cadata=self.authority or None)
            if not self.verified:
                made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                # Python can read certificates and keys only from files.
                with tempfile.NamedTemporaryFile(prefix="headgate-") as file:
                    file.write(b"\n".join(self.certificate))
                    file.flush()
                    set_identity(made, file.name)
        except (OSError, ValueError) as error:  # also the SSLError of a malformed one
            raise UserError(f"a certificate or key for {self.server} cannot be read: {error}") from error
        return made


def found(file: Path | None, context: str, environment: Mapping[str, str] = os.environ, pod: Path = POD) -> Cluster:
    """Return the cluster from the given file; otherwise from KUBECONFIG, `~/.kube/config`, or the launcher's own pod.

    Raise UserError.
    """
    if file is not None:
        return read([file], context)
    # Like kubectl, ignore missing files of the list; if all are missing, the first one is for the error message.
    if paths := [Path(one) for one in environment.get("KUBECONFIG", "").split(os.pathsep) if one]:
        return read([one for one in paths if one.exists()] or paths[:1], context)
    home = Path(environment.get("HOME") or "/", ".kube/config")
    if home.exists():
        return read([home], context)
    if environment.get(_HOST) and (pod / "token").exists():
        return _inside(environment, pod)
    raise UserError(
        "no cluster is known: set kubeconfig_file, or KUBECONFIG in the environment, or write ~/.kube/config; "
        "a launcher that runs in the cluster needs the token of a service account"
    )


def read(files: list[Path], context: str) -> Cluster:
    """Return the cluster of `context`, or of the current context. The first file that sets a value wins. Raise
    UserError."""
    every = [_Document.read(file) for file in files]
    name = context or next(
        (str(one.values["current-context"]) for one in every if one.values.get("current-context")), ""
    )
    if not name:
        raise UserError(f"{files[0]} has no current-context: set `context`")
    # Each entry is returned with its file, because relative paths in it start there.
    chosen, _ = _entry(every, "context", name)
    cluster, cluster_file = _entry(every, "cluster", str(chosen.get("cluster", "")))
    user, user_file = _entry(every, "user", str(chosen["user"])) if chosen.get("user") else ({}, every[0])
    server = str(cluster.get("server", "")).rstrip("/")
    if urlsplit(server).scheme not in ("http", "https"):
        raise UserError(
            f"{cluster_file.file}: the cluster {chosen['cluster']} has the server {server!r}, which is not a URL"
        )
    if urlsplit(server).username is not None:
        # Builds receive the URL, and error messages contain it, so it must not contain credentials.
        raise UserError(
            f"{cluster_file.file}: the server of the cluster {chosen['cluster']} names a user: put it under users"
        )
    authority = cluster_file.content(cluster, "certificate-authority")
    certificate, key = user_file.content(user, "client-certificate"), user_file.content(user, "client-key")
    if bool(certificate) != bool(key):
        raise UserError(f"{user_file.file}: the user {chosen['user']} needs both a client certificate and its key")
    return Cluster(
        server,
        _called(server),
        user_file.user(user, str(chosen.get("user"))),
        (authority or b"").decode(errors="replace"),
        cluster.get("insecure-skip-tls-verify") is not True,
        str(cluster.get("tls-server-name") or ""),
        str(cluster.get("proxy-url") or ""),
        (certificate, key) if certificate and key else None,
    )


@dataclass(frozen=True, slots=True)
class _Document:
    file: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> _Document:
        try:
            if file.stat().st_size > FILE_SIZE_MAX_BYTES:
                raise UserError(f"{file} is not a kubeconfig: it is larger than {FILE_SIZE_MAX_BYTES >> 20} MB")
            content = yaml.safe_load(text_of(file))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot be read: {reason(error)}") from error
        except yaml.YAMLError as error:
            raise UserError(f"{file}: this is not YAML: {yaml_fault(error)}") from error
        if not isinstance(content, dict):
            raise UserError(f"{file} is not a kubeconfig: it has no clusters, users and contexts")
        return cls(file, content)

    def content(self, entry: Mapping[str, Any], key: str) -> bytes | None:
        """Return the content of `KEY-data`, which is base64, or of the file that `KEY` names, relative to this one."""
        if data := entry.get(f"{key}-data"):
            try:
                return base64.b64decode(str(data), validate=True)
            except (ValueError, binascii.Error) as error:
                raise UserError(f"{self.file}: {key}-data is not base64") from error
        if path := entry.get(key):
            try:
                return bytes_of(self.file.parent / str(path))
            except OSError as error:
                raise UserError(f"{self.file}: the {key} {path} cannot be read: {error.strerror}") from error
        return None

    def user(self, entry: Mapping[str, Any], name: str) -> KubernetesUser:
        if entry.get("auth-provider"):
            raise UserError(
                f"{self.file}: the user {name} has an auth-provider, which Kubernetes 1.26 removed: use a token, a "
                "client certificate or `exec`"
            )
        plugin = entry.get("exec")
        if plugin is not None and not (isinstance(plugin, dict) and plugin.get("command")):
            raise UserError(f"{self.file}: `exec` of the user {name} has no command")
        if entry.get("tokenFile"):
            return KubernetesUser(token_file=self.file.parent / str(entry["tokenFile"]))
        if entry.get("token"):
            return KubernetesUser(token=str(entry["token"]))
        if entry.get("username"):
            return KubernetesUser(name_and_password=(str(entry["username"]), str(entry.get("password", ""))))
        return KubernetesUser(plugin=plugin)


def _entry(every: list[_Document], kind: str, name: str) -> tuple[Mapping[str, Any], _Document]:
    """Return the first entry with this name, and its file. Raise UserError if there is none."""
    for one in every:
        for entry in one.values.get(f"{kind}s") or ():
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
                return entry[kind], one
    raise UserError(f"{', '.join(str(one.file) for one in every)}: there is no {kind} {name!r}")


def _inside(environment: Mapping[str, str], pod: Path) -> Cluster:
    host, port = environment[_HOST], environment.get(_PORT) or "443"
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        authority = (pod / "ca.crt").read_text()
    except OSError as error:
        raise UserError(f"{pod / 'ca.crt'}: cannot be read: {error.strerror}") from error
    return Cluster(server, _called(server), KubernetesUser(token_file=pod / "token"), authority)


def _called(server: str) -> str:
    """Return a name for contexts, derived from the server's URL."""
    parts = urlsplit(server)
    return f"{parts.netloc}{parts.path}".replace(".", "-").replace("/", "-").replace("[", "").replace("]", "")


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
                return {"Authorization": f"Bearer {text_of(user.token_file).strip()}"}
            except (OSError, UnicodeDecodeError) as error:
                raise CloudUnavailable(f"the token for {self._cluster.server} cannot be read: {error}") from error
        if user.plugin is None:
            return {"Authorization": f"Bearer {user.token}"} if user.token else {}
        # A plugin takes seconds, so one run serves all waiting requests.
        async with self._turn:
            if not self._token or self._until_s < self._now_s() + EARLY_S:
                self._token, self._until_s = await self._run_plugin(user.plugin)
            return {"Authorization": f"Bearer {self._token}"}

    def refused(self, used: Mapping[str, str]) -> bool:
        """Discard credentials that the cluster refused (`used`: headers of the request); return whether new ones may
        help."""
        user = self._cluster.user
        if user.plugin is None or user.name_and_password is not None or user.token_file is not None:
            return False
        # Of several requests with the same token, only the first discards it: when the others are answered, there may
        # already be a new one.
        if used.get("Authorization") == f"Bearer {self._token}":
            self._token = ""
        return True

    async def _run_plugin(self, plugin: Mapping[str, Any]) -> tuple[str, float]:
        """Run the program, and return the token that it prints and its expiry time. Raise CloudUnavailable."""
        # Like kubectl: in this process's environment with the kubeconfig's additions, and without a terminal.
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
            raise CloudUnavailable(
                f"{command[0]}, which provides the token, cannot be run: {error.strerror}"
            ) from error
        try:
            async with asyncio.timeout(PLUGIN_MAX_S):
                answer, wrong = await communicate(process, b"", PLUGIN_MAX_BYTES)
        except (TimeoutError, OutputTooLarge) as error:
            raise CloudUnavailable(f"{command[0]} does not provide the token: {type(error).__name__}") from error
        finally:
            await put_down(process)
        if process.returncode:
            raise CloudUnavailable(
                f"{command[0]} ended with {process.returncode}: {one_line(wrong.decode(errors='replace'))}"
            )
        return _plugin_token(command[0], answer)


def _plugin_token(program: str, answer: bytes) -> tuple[str, float]:
    """Return the token in the output of a program, and its expiry time. Raise CloudUnavailable."""
    try:
        status = json.loads(answer)["status"]
        token, end = str(status.get("token") or ""), status.get("expirationTimestamp")
        until_s = datetime.fromisoformat(str(end)).timestamp() if end else float("inf")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CloudUnavailable(f"{program} does not behave like a Kubernetes credential plugin") from error
    if not token:
        raise CloudUnavailable(f"{program} provides no token; client certificates of plugins are not supported")
    return token, until_s
