"""Define where services register their addresses, for clients that look them up in etcd."""

from __future__ import annotations

from headgate.map.records import Empty
from headgate.map.tree import Dir, Each, each, place

PREFIX_VARIABLE = "GSR_KEY_PREFIX"
PREFIX = "gsr/"
"""Prefix of the registry's keys, byte for byte: there is no slash before it."""


class EndpointPlace(Dir):
    """Hold one endpoint, `host:port`."""

    record = place(Empty, "A service answers there.", by="inventory", node="ephemeral", own=True)


class ServicePlace(Dir):
    """Hold the endpoints of one service."""

    endpoint = each(EndpointPlace, key="endpoint", bare=True)


class ServiceRegistry(Dir):
    """Hold the services that clients can find."""

    services = each(ServicePlace, key="service")


def endpoint(service: str, host: str, port: int) -> str:
    """Return the path of one endpoint below the prefix. It is not escaped: clients read host and port from it."""
    registry: Each[ServicePlace] = ServiceRegistry("").services
    return f"{registry(service).path}/{host}:{port}"
