"""Where an etcd is and how it is spoken to: `etcd://[user:password@]host[:port],…[/prefix][?option=…]`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import grpc

from headgate.store.model import check_path
from headgate.store.types import StoreError

SCHEME = "etcd://"
PORT = 2379
OPTIONS = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class Address:
    hosts: tuple[tuple[str, int], ...]
    prefix: str = ""
    """Before every path: empty, or a path without a slash at its end."""
    user: str = ""
    password: str = ""
    tls_ca: str = ""
    """PEM file of who signed the servers' certificates; with it, connections are encrypted."""
    tls_cert: str = ""
    tls_key: str = ""

    def __str__(self) -> str:
        """Without the password."""
        return SCHEME + ",".join(f"{host}:{port}" for host, port in self.hosts) + self.prefix

    def target(self) -> str:
        """As gRPC wants it; several hosts are told by their numbers.  Raises StoreError."""
        if len(self.hosts) == 1:
            ((host, port),) = self.hosts
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            found = [(socket.gethostbyname(host), port) for host, port in self.hosts]
        except OSError as error:
            raise StoreError(f"{self}: a host is not known: {error}") from error
        return "ipv4:" + ",".join(f"{number}:{port}" for number, port in found)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Raises StoreError naming the file that is not good."""
        if not self.tls_ca:
            return None

        def pem(name: str) -> bytes | None:
            try:
                return Path(name).read_bytes() if name else None
            except OSError as error:
                raise StoreError(f"{self}: {name} cannot be read: {error.strerror}") from error

        certificate = pem(self.tls_cert)
        key = pem(self.tls_key) if self.tls_key else certificate
        return grpc.ssl_channel_credentials(pem(self.tls_ca), key, certificate)


def parse(url: str) -> Address:
    """Raises StoreError, which never shows the password."""
    rest, _, query = url.removeprefix(SCHEME).partition("?")
    login, _, where = rest.rpartition("@")
    servers, slash, below = where.partition("/")
    shown = f"{SCHEME}{where}"
    user, _, password = login.partition(":")
    if login and not (user and password):
        raise StoreError(f"{shown}: before the @ stand user:password, percent-encoded")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := [name for name in options if name not in OPTIONS]:
        raise StoreError(f"{shown}: unknown option {unknown[0]!r}; known are {', '.join(OPTIONS)}")
    if options.get("tls_cert") and not options.get("tls_ca"):
        raise StoreError(f"{shown}: tls_cert needs tls_ca, the file of who signed the servers' certificates")
    prefix = unquote(slash + below.rstrip("/")) if below.strip("/") else ""
    if prefix:
        try:
            check_path(prefix)
        except ValueError as error:
            raise StoreError(f"{shown}: {error}") from error
    hosts = tuple(_host(one, shown) for one in servers.split(","))
    return Address(hosts, prefix, unquote(user), unquote(password), **options)


def _host(text: str, shown: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host, port = (host, port) if colon else (text, str(PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise StoreError(f"{shown}: {text!r} is no host:port")
    return host.strip("[]"), int(port)
