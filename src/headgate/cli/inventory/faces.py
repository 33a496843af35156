"""The inventory in a process: the inventory itself, its servers, and the launcher that claims machines in it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine

from headgate.adapters.nodes.machines import LocalProvider
from headgate.adapters.nodes.ssh import SshProvider
from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.tls import tls_of
from headgate.cli.identity.token import operator_token
from headgate.cli.settings import FLAGS, Settings
from headgate.inventory.model import LOCAL, STATIC
from headgate.inventory.names import Invalid
from headgate.map.inventory.places import (
    ORIGINAL_PREFIX,
    REGISTRY_PREFIX,
    REGISTRY_PREFIX_VARIABLE,
    InventoryMap,
    endpoint_path,
    root,
)
from headgate.ports.cloud import Provider
from headgate.services.context import Context
from headgate.services.inventory.discovery import found_at
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.nodes.launcher import Launcher
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.services.nodes.search import expression
from headgate.services.tenancy import Tenants
from headgate.store.etcd.address import SCHEME as ETCD
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.store import Store
from headgate.store.types import At
from headgate.web.inventory.http import create_app
from headgate.web.inventory.identity import CallerSessions, Identity, Trusting, Verifying
from headgate.web.inventory.server import serve, v1_parts
from headgate.web.peers.requests import App
from headgate.web.serve import serve as serve_web

log = logging.getLogger("headgate.inventory")


async def run_inventory(settings: Settings, inventory: Inventory, stop: asyncio.Event) -> None:
    """Follow and serve the inventory until `stop`. Raise UserError."""
    await inventory.begin()
    await run_until(stop, inventory.journal.run(), ObjectLeasing(inventory).run(), *_faces(settings, inventory, stop))


async def followed(inventory: Inventory) -> None:
    """Follow changes of the inventory, and end expired leases, until cancelled."""
    await inventory.begin()
    await run_until(asyncio.Event(), inventory.journal.run(), ObjectLeasing(inventory).run())


async def serve_inventory(settings: Settings, inventory: Inventory, stop: asyncio.Event) -> None:
    """Serve an inventory that this process follows, until `stop`. Raise UserError."""
    await inventory.begin()
    await run_until(stop, *_faces(settings, inventory, stop))


def _faces(settings: Settings, inventory: Inventory, stop: asyncio.Event) -> list[Coroutine[None, None, None]]:
    """Return the servers of the inventory: gRPC and, if a port is set, HTTP. Raise UserError."""
    host, port = settings.get("inventory", "listen_address"), settings.get("inventory", "port")
    sessions = _sessions(settings, inventory)
    # With port 0 the number is known only once the server listens; etcd must not announce another one.
    served = asyncio.get_running_loop().create_future()

    def bound(number: int) -> None:
        _announce("gRPC", host)(number)
        served.set_result(number)

    tls = tls_of(settings, "inventory", ("cert_path", "key_path", "client_ca_path"))
    works = [serve(inventory, sessions, _joined(host, port), tls, stop, bound)]
    if settings.store_url.startswith(ETCD):
        works.append(_be_found(settings, host, served))
    if http_port := settings.get("inventory", "http_port"):
        app = create_app(v1_parts(sessions, inventory))
        announce = _announce("JSON over HTTPS" if tls else "JSON over HTTP", host)
        works.append(serve_web(app, host, int(http_port), stop, announce, "[inventory]", "http_port", tls))
    return works


def make_json(settings: Settings, inventory: Inventory) -> App:
    """Return the inventory as JSON over HTTP, for a port that serves other things as well. Raise UserError."""
    return create_app(v1_parts(_sessions(settings, inventory), inventory))


def _sessions(settings: Settings, inventory: Inventory) -> CallerSessions:
    return CallerSessions(_identity(settings), inventory, settings.get("inventory", "open_partitions").split())


async def _be_found(settings: Settings, host: str, served: asyncio.Future[int]) -> None:
    """Announce the inventory in etcd, to clients of the registry that runmachine's services use, until cancelled."""
    known = socket.getfqdn() if host in ("0.0.0.0", "::", "") else host
    path = endpoint_path(settings.get("inventory", "service_name"), known, await served)
    prefix = os.environ.get(REGISTRY_PREFIX_VARIABLE) or REGISTRY_PREFIX
    backend = EtcdBackend.beside(settings.store_url, prefix.rstrip("/"))
    try:
        await found_at(Store(backend), path)
    finally:
        await backend.close()


async def make_launcher(
    settings: Settings,
    context: Context,
    inventory: Inventory,
    tenants: Tenants,
    making: Callable[[At], MachineMaker] | None = None,
) -> Launcher:
    """Return the launcher, which gives machines to builds; `making` makes machines, if given. Raise UserError for
    an invalid label."""
    for tenant in tenants().values():
        # A label with a typing error is an error of this start, not a request that waits for machines for ever.
        for name, label in tenant.labels.items():
            try:
                expression(label)
            except Invalid as error:
                raise UserError(f"tenant {tenant.name}: label {name}: {error}") from error
    await inventory.begin()
    ssh = SshProvider(learns=settings.get("launcher", "host_keys") == "learn")
    providers: dict[str, Provider] = {STATIC: ssh, LOCAL: LocalProvider()}
    interval_s = settings.number("launcher", "probe_interval")
    return Launcher(context, inventory, tenants, providers, probe_interval_s=interval_s, making=making)


def make_inventory(settings: Settings, store: Store) -> Inventory:
    compatible = compatible_in(settings)
    places = InventoryMap(root(prefix_in(settings)))
    return Inventory(store, places, lambda: int(time.time() * 1000), compatible=compatible)


def compatible_in(settings: Settings) -> bool:
    """Return whether the inventory is stored in the form of runm-metadata."""
    return FLAGS[settings.get("inventory", "compatible").lower()]


def prefix_in(settings: Settings) -> str:
    """Return the prefix before `runm/metadata`; by default, if the form is that of runm-metadata, its own."""
    prefix = settings.values.get("inventory", {}).get("prefix")
    return prefix or (ORIGINAL_PREFIX if compatible_in(settings) else settings.get("inventory", "prefix"))


def _identity(settings: Settings) -> Identity:
    """Choose how callers are identified. Raise UserError when any caller from anywhere would be believed."""
    host = settings.get("inventory", "listen_address")
    if settings.get("inventory", "identity") != "trust":
        tokens = authenticators(settings)
        if compatible_in(settings):
            log.warning("identity = verify: clients of runm-metadata bring no tokens and are refused, unless they "
                        "show a certificate; identity = trust, on loopback, lets them in")  # fmt: skip
        return Verifying(tokens, operator_token(settings))
    if not _is_loopback(host):
        raise UserError(
            f"[inventory] listens on {host}, where anybody could say to be anybody: let identity be verify (tokens, or "
            "certificates of [tls] client_ca); or listen on 127.0.0.1, where callers are believed with identity = trust"
        )
    log.warning("identity = trust: whoever can connect to %s, any job on this machine too, is believed to be who they "
                "say", host)  # fmt: skip
    return Trusting()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _joined(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _announce(protocol: str, host: str) -> Callable[[int], None]:
    def bound(port: int) -> None:
        print(f"The inventory is served; {protocol} is at {_joined(host, str(port))}", flush=True)

    return bound
