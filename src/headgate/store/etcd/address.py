"""Parse the address of etcd and its options: `etcd://[user:password@]host[:port],…[/root][?option=…]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from headgate.base.files import bytes_of, reason
from headgate.base.hints import expected, with_hint
from headgate.store.model import check_path
from headgate.store.types import StoreError

if TYPE_CHECKING:
    import grpc

SCHEME = "etcd://"
PORT = 2379
OPTIONS = ("tls_ca", "tls_cert", "tls_key", "shared", "bare")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Hold the parts of an etcd URL."""

    hosts: tuple[str, ...]
    """Servers, each as `host:port`."""
    root: str = ""
    """Prefix of all keys of the tree: empty, or a path without a trailing slash."""
    user: str = ""
    password: str = ""
    tls_ca: str = ""
    """PEM file of the authority that signed the servers' certificates; with it, connections are encrypted."""
    tls_cert: str = ""
    tls_key: str = ""
    shared: str = ""
    """`yes`: there may be foreign keys below the root; Headgate does not touch them."""
    bare: str = ""
    """`yes`: keys begin with the root itself, without a leading slash."""

    def __str__(self) -> str:
        """Return the address without the password."""
        return SCHEME + ",".join(self.hosts) + (f"/{self.root}" if self.bare else self.root)

    def tls(self) -> grpc.ChannelCredentials | None:
        """Return the TLS credentials, or None for plain connections. Raise StoreError, which names the unusable
        file."""
        if not self.tls_ca:
            return None
        import grpc  # slow to import, and only needed for etcd

        # Without a separate file, the key is in the same PEM file as the certificate.
        key = self._read("tls_key", self.tls_key or self.tls_cert) if self.tls_cert else None
        chain = self._read("tls_cert", self.tls_cert) if self.tls_cert else None
        return grpc.ssl_channel_credentials(self._read("tls_ca", self.tls_ca), key, chain)

    def _read(self, option: str, file: str) -> bytes:
        try:
            read = bytes_of(Path(file))
        except OSError as error:
            raise StoreError(f"{self}: {option}={file} cannot be read ({reason(error)})") from error
        if b"-----BEGIN" not in read:
            raise StoreError(f"{self}: {option}={file} is not a PEM file")
        return read


def parse(url: str) -> EtcdAddress:
    """Parse the address of a store. Raise StoreError, whose text never contains the password."""
    rest, _, query = url.removeprefix(SCHEME).partition("?")
    # Split at the last `@`: if a password contains an unencoded one, no part of it gets into `shown`.
    login, at, where = rest.rpartition("@")
    servers, slash, root = where.partition("/")
    shown = f"{SCHEME}{where}"
    user, colon, password = login.partition(":")
    if at and not (user and colon and password):
        raise StoreError(f"{shown}: the part before the @ must be user:password, percent-encoded")
    options = _options(query, shown)
    path = unquote(slash + root.rstrip("/")) if root.strip("/") else ""
    if path:
        try:
            check_path(path)
        except ValueError as error:
            raise StoreError(f"{shown}: {error}") from error
    if options.get("bare"):
        if not path:
            raise StoreError(f"{shown}: bare needs a root")
        path = path.removeprefix("/")
    hosts = tuple(_host(one, shown) for one in servers.split(","))
    return EtcdAddress(hosts, path, unquote(user), unquote(password), **options)


def _options(query: str, shown: str) -> dict[str, str]:
    """Return the options of an address. Raise StoreError."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise StoreError(with_hint(f"{shown}: unknown option {name!r}", expected(OPTIONS)))
    if options.get("tls_cert") and not options.get("tls_ca"):
        raise StoreError(
            f"{shown}: tls_cert needs tls_ca, the file of the authority that signed the servers' certificates"
        )
    for name in ("shared", "bare"):
        if options.get(name, "yes") != "yes":
            raise StoreError(f"{shown}: {name} can only be `yes`")
    return options


def _host(text: str, shown: str) -> str:
    host, colon, port = text.rpartition(":")
    # An IPv6 address has colons of its own; without a port it ends with the bracket.
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise StoreError(f"{shown}: {text!r} is not a host:port")
    return f"{host}:{port}"
