"""Find a cluster and its credentials: in a kubeconfig, KUBECONFIG and `~/.kube/config`, or the pod we run in."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from headgate.base.errors import UserError

POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in every pod with `token`, `ca.crt` and `namespace`."""
FILE_SIZE_MAX_BYTES = 2**20
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


@dataclass(frozen=True, slots=True)
class KubernetesUser:
    """Hold the user's credentials, of which at most one kind is set."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """Path of a token, read again for each request, since clusters replace its content."""
    name_and_password: tuple[str, str] | None = field(default=None, repr=False)
    plugin: Mapping[str, Any] | None = field(default=None, repr=False)
    """A program that prints the token: `command`, `args`, `env`."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Describe one cluster and the user who calls it."""

    server: str
    """URL of the server, without a slash at the end."""
    name: str
    """Name of the cluster in the contexts of builds."""
    user: KubernetesUser
    authority: str = ""
    """Certificates of authorities in PEM; empty: those that this machine trusts."""
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
                # Python reads certificates and keys from files only.
                with tempfile.NamedTemporaryFile(prefix="headgate-") as file:
                    file.write(b"\n".join(self.certificate))
                    file.flush()
                    made.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError) as error:
            raise UserError(f"a certificate or key for {self.server} cannot be read: {error}") from error
        return made


def found(file: Path | None, context: str, environment: Mapping[str, str] = os.environ, pod: Path = POD) -> Cluster:
    """Return the cluster of the named file; else of KUBECONFIG, of the home's `.kube/config`, of the pod we are in.

    Raise UserError.
    """
    if file is not None:
        return read([file], context)
    # kubectl also ignores missing files of the list; the first one stays for the error message.
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
    """Return the cluster of `context`, or of the current one, from files of which the first one with a value counts.
    Raise UserError."""
    every = [_Document.read(file) for file in files]
    name = context or next(
        (str(one.values["current-context"]) for one in every if one.values.get("current-context")), ""
    )
    if not name:
        raise UserError(f"{files[0]} has no current-context: set `context`")
    # Each entry keeps its file, since relative paths in it start there.
    chosen, _ = _entry(every, "context", name)
    cluster, cluster_file = _entry(every, "cluster", str(chosen.get("cluster", "")))
    user, user_file = _entry(every, "user", str(chosen["user"])) if chosen.get("user") else ({}, every[0])
    server = str(cluster.get("server", "")).rstrip("/")
    if urlsplit(server).scheme not in ("http", "https"):
        raise UserError(
            f"{cluster_file.file}: the cluster {chosen['cluster']} has the server {server!r}, which is not an address"
        )
    if urlsplit(server).username is not None:
        # Builds receive the address, and error messages contain it.
        raise UserError(
            f"{cluster_file.file}: the server of the cluster {chosen['cluster']} names a user: say it under users"
        )
    authority = cluster_file.content(cluster, "certificate-authority")
    certificate, key = user_file.content(user, "client-certificate"), user_file.content(user, "client-key")
    if bool(certificate) != bool(key):
        raise UserError(f"{user_file.file}: the user {chosen['user']} has a client certificate or a key, and not both")
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
                raise UserError(f"{file} is larger than {FILE_SIZE_MAX_BYTES >> 20} MB, which no kubeconfig is")
            content = yaml.safe_load(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot be read: {error}") from error
        except yaml.YAMLError as error:
            raise UserError(f"{file}: this is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(content, dict):
            raise UserError(f"{file} is not a kubeconfig: it has no clusters, users and contexts")
        return cls(file, content)

    def content(self, entry: Mapping[str, Any], key: str) -> bytes | None:
        """Return the content under `KEY-data` in base64, or of the file under `KEY`, relative to this one."""
        if data := entry.get(f"{key}-data"):
            try:
                return base64.b64decode(str(data), validate=True)
            except (ValueError, binascii.Error) as error:
                raise UserError(f"{self.file}: {key}-data is not base64") from error
        if path := entry.get(key):
            try:
                return (self.file.parent / str(path)).read_bytes()
            except OSError as error:
                raise UserError(f"{self.file}: the {key} {path} cannot be read: {error.strerror}") from error
        return None

    def user(self, entry: Mapping[str, Any], name: str) -> KubernetesUser:
        if entry.get("auth-provider"):
            raise UserError(
                f"{self.file}: the user {name} has an auth-provider, which clients of Kubernetes have not known since "
                "1.26: use a token, a client certificate or `exec`"
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
    """Return the first entry of this name, and its file."""
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
    """Return a name for contexts, made of the server's address."""
    parts = urlsplit(server)
    return f"{parts.netloc}{parts.path}".replace(".", "-").replace("/", "-").replace("[", "").replace("]", "")
