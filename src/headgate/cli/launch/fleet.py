"""List the machines that run Headgate itself, from the settings and the registry of components."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from headgate.cli.settings import Settings
from headgate.services.context import Context
from headgate.store.etcd import address as etcd
from headgate.store.types import StoreError
from headgate.store.zookeeper import address as zookeeper

LISTENING = (("web", "listen_address"), ("inventory", "listen_address"), ("messages", "listen_address"))
URLS = (("web", "root"), ("published_events", "url"), ("tracing", "endpoint"))
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - nothing is bound to them
"""Wildcard addresses, which name no machine; builds may not reach this machine's addresses in any case."""


def fleet(settings: Settings, context: Context) -> Callable[[], Collection[str]]:
    """Return a function that returns the current names and addresses of these machines."""
    known = named(settings)

    def now() -> Collection[str]:
        # Read the registry at each call: executors and servers may join after this process has started.
        return {*known, *_registered(context)}

    return now


def named(settings: Settings) -> frozenset[str]:
    """Return the machines that the settings name."""
    return frozenset(_named(settings))


def _registered(context: Context) -> Iterator[str]:
    for record in context.members(context.map.components.path).values():
        yield record.hostname
        yield from _host(record.data.url)


def _named(settings: Settings) -> Iterator[str]:
    yield from _of_store(settings.store_url)
    for url in (settings.dburi, settings.messages_url):
        try:
            yield from filter(None, [make_url(url).host])
        except ArgumentError:
            continue  # the code that uses it reports errors
    for section, option in URLS:
        yield from _host(settings.get(section, option))
    for connection in settings.connections.values():
        if connection.get("driver") == "queue":
            yield from _host(connection.get("url", ""))
    yield from (found for at in LISTENING if (found := settings.get(*at)) not in EVERYWHERE)


def _of_store(url: str) -> Iterator[str]:
    try:
        if url.startswith(zookeeper.SCHEME):
            yield from (host for host, _ in zookeeper.parse(url).hosts)
        elif url.startswith(etcd.SCHEME):
            yield from (host.rpartition(":")[0].strip("[]") for host in etcd.parse(url).hosts)
    except StoreError:
        return  # the code that uses it reports errors


def _host(url: str) -> Iterator[str]:
    try:
        found = urlsplit(url).hostname
    except ValueError:
        return  # the code that uses it reports errors
    if found:
        yield found
