"""Parse the address of ZooKeeper and its options: `zookeeper://[user:password@]host[:port],…[/chroot][?option=…]`."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from headgate.base.certificates import client_context, set_identity
from headgate.base.hints import expected, with_hint
from headgate.store.model import check_path
from headgate.store.types import StoreError

SCHEME = "zookeeper://"
PORT = 2181
SESSION_S = 10.0
OPTIONS = ("tls_ca", "tls_cert", "tls_key", "session_s", "adopt")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """Hold the parts of a ZooKeeper URL."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str = ""
    """Path of the node that is the root of the tree: empty, or without a trailing slash."""
    user: str = ""
    password: str = ""
    tls_ca: str = ""
    """PEM file of the authority that signed the servers' certificates; with it, connections are encrypted."""
    tls_cert: str = ""
    tls_key: str = ""
    session_s: float = SESSION_S
    """Session timeout: if a server is silent for two thirds of it, the client connects to another one."""
    adopt: bool = False
    """Whether the tree may include nodes that already exist below the chroot. The chroot's own node is created if it is
    missing."""

    def __str__(self) -> str:
        """Return the address without the password."""
        return SCHEME + ",".join(f"{host}:{port}" for host, port in self.hosts) + self.chroot

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None for plain connections. Raise StoreError, which names the unusable file."""
        if not self.tls_ca:
            return None
        try:
            context = client_context(self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise StoreError(f"{self}: tls_ca={self.tls_ca} is not a file of certificates ({error})") from error
        if self.tls_cert:
            try:
                # Without a separate file, the key is in the same PEM file as the certificate.
                set_identity(context, self.tls_cert, self.tls_key or None)
            except (OSError, ssl.SSLError) as error:
                names = f"tls_cert={self.tls_cert} and tls_key={self.tls_key or self.tls_cert}"
                raise StoreError(f"{self}: {names} are not a certificate and its key ({error})") from error
        return context


def parse(url: str) -> ZooKeeperAddress:
    """Parse the address of a store. Raise StoreError, whose text never contains the password."""
    rest, _, query = url.removeprefix(SCHEME).partition("?")
    # Split at the last `@`: if a password contains an unencoded one, no part of it gets into `shown`.
    login, at, where = rest.rpartition("@")
    servers, slash, chroot = where.partition("/")
    shown = f"{SCHEME}{where}"
    user, colon, password = login.partition(":")
    if at and not (user and colon and password):
        raise StoreError(f"{shown}: the part before the @ must be user:password, percent-encoded")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise StoreError(with_hint(f"{shown}: unknown option {name!r}", expected(OPTIONS)))
        options[name] = value
    if options.get("tls_cert") and not options.get("tls_ca"):
        raise StoreError(
            f"{shown}: tls_cert needs tls_ca, the file of the authority that signed the servers' certificates"
        )
    path = unquote(slash + chroot.rstrip("/")) if chroot.strip("/") else ""
    if path:
        try:
            check_path(path)
        except ValueError as error:
            raise StoreError(f"{shown}: {error}") from error
    return ZooKeeperAddress(
        tuple(_host(one, shown) for one in servers.split(",")),
        path,
        unquote(user),
        unquote(password),
        options.get("tls_ca", ""),
        options.get("tls_cert", ""),
        options.get("tls_key", ""),
        _seconds(options.get("session_s", str(SESSION_S)), shown),
        options.get("adopt", "no") == "yes",
    )


def _host(text: str, shown: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    # An IPv6 address has colons of its own; without a port it ends with the bracket.
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise StoreError(f"{shown}: {text!r} is not a host:port")
    return host.strip("[]"), int(port)


def _seconds(text: str, shown: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 600:
        raise StoreError(f"{shown}: session_s must be from 0.1 to 600 seconds, not {text!r}")
    return value
