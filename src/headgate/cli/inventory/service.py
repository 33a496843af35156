"""Run the inventory in a gate or on its own (`headgate inventory serve`), and check it (`headgate inventory fsck`)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import click

from headgate.adapters.nodes.machines import LocalProvider
from headgate.adapters.nodes.ssh import SshProvider
from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.credentials import operator_token, tls_of
from headgate.cli.logs import set_up
from headgate.cli.resources import open_store, open_store_to_read
from headgate.cli.settings import FLAGS, Settings, read_or_defaults
from headgate.cli.terminal.say import say
from headgate.inventory.model import LOCAL, STATIC
from headgate.inventory.names import Invalid
from headgate.map.inventory import places
from headgate.ports.clouds import Provider
from headgate.services.configuration import Tenants
from headgate.services.context import Context
from headgate.services.inventory.fsck import InventoryFinding, examine, repair
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.membership import found_at
from headgate.services.nodes.launcher import Launcher
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.services.nodes.search import expression
from headgate.store.etcd.address import SCHEME
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.sqlite import Locked
from headgate.store.store import Store
from headgate.store.types import At, Backend
from headgate.web.inventory.http import create_app
from headgate.web.inventory.identity import CallerSessions, Identity, Trusting, Verifying
from headgate.web.inventory.server import serve, v1_parts
from headgate.web.peers.requests import App
from headgate.web.server import serve as serve_web

log = logging.getLogger("headgate.inventory")


async def run_inventory(settings: Settings, inventory: Inventory, stop: asyncio.Event) -> None:
    """Follow and serve the inventory until `stop`. Raise UserError."""
    await inventory.begin()
    await run_until(stop, inventory.journal.run(), ObjectLeasing(inventory).run(), *_servers(settings, inventory, stop))


async def followed(inventory: Inventory) -> None:
    """Follow changes of the inventory, and end expired leases, until cancelled."""
    await inventory.begin()
    await run_until(asyncio.Event(), inventory.journal.run(), ObjectLeasing(inventory).run())


async def serve_inventory(settings: Settings, inventory: Inventory, stop: asyncio.Event) -> None:
    """Serve an inventory that this process follows, until `stop`. Raise UserError."""
    await inventory.begin()
    await run_until(stop, *_servers(settings, inventory, stop))


def _servers(settings: Settings, inventory: Inventory, stop: asyncio.Event) -> list[Coroutine[None, None, None]]:
    """Return the servers of the inventory: gRPC and, if a port is set, HTTP. Raise UserError."""
    host, port = settings.get("inventory", "listen_address"), settings.get("inventory", "port")
    sessions = _sessions(settings, inventory)
    # With port 0, the number is known only once the server listens; announce that one in etcd.
    served = asyncio.get_running_loop().create_future()

    def bound(number: int) -> None:
        _announce("gRPC", host)(number)
        served.set_result(number)

    tls = tls_of(settings, "inventory", ("cert_path", "key_path", "client_ca_path"))
    works = [serve(inventory, sessions, _joined(host, port), tls, stop, bound)]
    if settings.store_url.startswith(SCHEME):
        works.append(_be_found(settings, host, served))
    if http_port := settings.get("inventory", "http_port"):
        app = create_app(v1_parts(sessions, inventory), sessions)
        announce = _announce("JSON over HTTPS" if tls else "JSON over HTTP", host)
        works.append(serve_web(app, host, int(http_port), stop, announce, "[inventory]", "http_port", tls))
    return works


def make_json(settings: Settings, inventory: Inventory) -> App:
    """Return the inventory as JSON over HTTP, for a port that serves other things as well. Raise UserError."""
    sessions = _sessions(settings, inventory)
    return create_app(v1_parts(sessions, inventory), sessions)


def _sessions(settings: Settings, inventory: Inventory) -> CallerSessions:
    return CallerSessions(_identity(settings), inventory, settings.get("inventory", "open_partitions").split())


async def _be_found(settings: Settings, host: str, served: asyncio.Future[int]) -> None:
    """Announce the inventory in etcd, to clients of the registry that runmachine's services use, until cancelled."""
    # Clients on other machines need a name that reaches this one.
    known = socket.getfqdn() if host in ("0.0.0.0", "::", "") else host
    path = places.endpoint_path(settings.get("inventory", "service_name"), known, await served)
    prefix = os.environ.get(places.REGISTRY_PREFIX_VARIABLE) or places.REGISTRY_PREFIX
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
    """Return the launcher, which assigns machines to builds. `making` returns the component that creates machines, if
    there is one. Raise UserError for an invalid label."""
    for tenant in tenants().values():
        # Reject a label with a typo now; otherwise requests for it would wait for machines forever.
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
    map = places.InventoryMap(places.root(prefix_in(settings)))
    return Inventory(store, map, lambda: int(time.time() * 1000), compatible=compatible)


def compatible_in(settings: Settings) -> bool:
    """Return whether the inventory is stored in the format of runm-metadata."""
    return FLAGS[settings.get("inventory", "compatible").lower()]


def prefix_in(settings: Settings) -> str:
    """Return the key prefix before `runm/metadata`; in the format of runm-metadata, the default is runm-metadata's."""
    prefix = settings.values.get("inventory", {}).get("prefix")
    return prefix or (places.ORIGINAL_PREFIX if compatible_in(settings) else settings.get("inventory", "prefix"))


def _identity(settings: Settings) -> Identity:
    """Choose how to identify callers. Raise UserError if that would mean to trust callers from other machines."""
    host = settings.get("inventory", "listen_address")
    if settings.get("inventory", "identity") != "trust":
        tokens = authenticators(settings)
        if compatible_in(settings):
            log.warning("identity = verify: clients of runm-metadata send no tokens, so the inventory rejects them "
                        "unless they present a certificate; identity = trust, on loopback, accepts them")  # fmt: skip
        return Verifying(tokens, operator_token(settings))
    if not _is_loopback(host):
        raise UserError(
            f"[inventory] identity = trust, but listen_address = {host}: any caller could claim any identity. Set "
            "identity to verify (tokens, or certificates of [tls] client_ca), or listen_address to 127.0.0.1"
        )
    log.warning("identity = trust: every program that can connect to %s, including jobs on this machine, can claim any "
                "identity", host)  # fmt: skip
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
        # Scripts read this line, so its words stay as they are.
        print(f"The inventory is served; {protocol} is at {_joined(host, str(port))}", flush=True)

    return bound


@click.command("serve")
@click.option("--config", metavar="FILE", help="The settings file; without one, defaults apply.")
@click.option("--store", metavar="URL", help="URL of the store, instead of [store] url from the settings.")
@click.option(
    "--etcd-endpoints",
    envvar="RUNM_METADATA_STORAGE_ETCD_ENDPOINTS",
    metavar="HOST:PORT,…",
    help="Use etcd at these addresses as the store.",
)
@click.option(
    "--compatible",
    is_flag=True,
    default=None,
    help="Be compatible with programs for runm-metadata: use their key prefix (runm-metadata/), without a leading "
    "slash in etcd, and their definitions.",
)
@click.option(
    "--prefix", envvar="RUNM_METADATA_STORAGE_ETCD_KEY_PREFIX", help="Key prefix in the store, before runm/metadata."
)
@click.option("--listen", envvar="RUNM_METADATA_BIND_HOST", metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    envvar="RUNM_METADATA_BIND_PORT",
    type=click.IntRange(0, 65535),
    help="Port for gRPC; 0 picks a free one.",
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Port for JSON over HTTP.")
@click.option("--cert-path", type=click.Path(path_type=Path), help="TLS certificate, PEM.")
@click.option("--key-path", type=click.Path(path_type=Path), help="Private key of the certificate.")
@click.option("--client-ca-path", type=click.Path(path_type=Path), help="Require client certificates of this CA.")
@click.option(
    "--identity", type=click.Choice(["verify", "trust"]), help="Verify callers, or trust the names that they give."
)
@click.option("--verbose", is_flag=True, help="Print more details.")
def serve_alone(config: str | None, verbose: bool, **given: object) -> None:
    """Serve the inventory: gRPC services runm.RunmMetadata and headgate.inventory.v1, health and reflection."""
    set_up(level="debug" if verbose else "info")
    asyncio.run(_serve(with_given(read_or_defaults(config), given)))


def with_given(settings: Settings, given: dict[str, object]) -> Settings:
    """Return the settings, overridden by the options of the command line."""
    inventory = {name: str(value) for name, value in given.items() if value is not None}
    compatible = inventory.pop("compatible", "") == "True"
    if compatible:
        inventory["compatible"] = "true"
        inventory.setdefault("prefix", places.ORIGINAL_PREFIX)
    endpoints, store = inventory.pop("etcd_endpoints", None), inventory.pop("store", None)
    known = store or (settings.store_url if not endpoints else "")
    if compatible and known.startswith(SCHEME):
        endpoints, store = _hosts(known), None
    store = store or (endpoints and _as_before(endpoints, inventory))
    if "listen" in inventory:
        inventory["listen_address"] = inventory.pop("listen")
    for name in ("cert_path", "key_path", "client_ca_path"):
        if name in inventory:
            # Paths on the command line are relative to the current directory; paths in a file, to the file's.
            inventory[name] = str(Path(inventory[name]).absolute())
    values = {**settings.values, "inventory": {**settings.values.get("inventory", {}), **inventory}}
    if store:
        values["store"] = {**settings.values.get("store", {}), "url": _absolute(store)}
    return Settings(settings.path, values, settings.connections, settings.authenticators)


def _as_before(endpoints: str, inventory: dict[str, str]) -> str:
    """Return the URL of the store in runm-metadata's layout: it shares etcd with other data, under the given key
    prefix."""
    hosts, _, options = endpoints.replace("http://", "").partition("?")
    more = f"&{options}" if options else ""
    if inventory.get("prefix", "/").startswith("/"):
        return f"{SCHEME}{hosts}?shared=yes{more}"
    within = inventory["prefix"].strip("/")
    inventory["prefix"] = "/"  # the store's URL already contains the prefix
    return f"{SCHEME}{hosts}/{within}?shared=yes&bare=yes{more}"


def _hosts(url: str) -> str:
    """Return the servers and options of an etcd URL. Raise UserError if it contains a path."""
    hosts, question, options = url.removeprefix(SCHEME).partition("?")
    if "/" in hosts.rstrip("/"):
        raise UserError(
            "--compatible determines the path in etcd: give the store as etcd://HOST:PORT, and --prefix "
            f"unless it is {places.ORIGINAL_PREFIX}"
        )
    other_options = [one for one in options.split("&") if one and one.partition("=")[0] not in ("shared", "bare")]
    return hosts.rstrip("/") + question + "&".join(other_options)


def _absolute(url: str) -> str:
    """Resolve a SQLite file given on the command line against the current directory."""
    return f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}" if url.startswith("sqlite:///") else url


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    backend = await open_store(settings)
    try:
        await run_inventory(settings, make_inventory(settings, Store(backend)), stop)
    finally:
        await backend.close()


@click.command("fsck")
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--store", metavar="URL", help="URL of the store, instead of [store] url from the settings.")
@click.option("--compatible", is_flag=True, default=None, help="The data is in the format of runm-metadata.")
@click.option("--prefix", help="Key prefix in the store, before runm/metadata.")
@click.option(
    "--repair", "repairing", is_flag=True, help="Repair what can be repaired. With SQLite, stop the service first."
)
@click.pass_context
def fsck(context: click.Context, /, config: str | None, repairing: bool, **given: object) -> None:
    """Check the inventory's data: report missing, stray and dangling entries. The exit status is 1 if any remain.

    The service may run at the same time.
    """
    settings = with_given(read_or_defaults(config), given)
    findings, done, missed = asyncio.run(_examined(settings, repairing))
    for one in findings:
        say(f"{one.path}: {one.what}{'' if one.repair else ' (cannot be repaired automatically)'}")
    if repairing:
        changed = f"; {missed} changed in the meantime: run this command again" if missed else ""
        say(f"{len(findings)} findings, {done} repaired{changed}")
    else:
        say(f"{len(findings)} findings")
    context.exit(0 if done == len(findings) else 1)


async def _examined(settings: Settings, repairing: bool) -> tuple[list[InventoryFinding], int, int]:
    """Return the errors found, how many were repaired, and how many changed in the meantime."""
    # Only a repair needs SQLite's lock; a check can read while the service runs.
    backend = await (_opened(settings) if repairing else open_store_to_read(settings))
    try:
        opened = Store(backend)
        map = places.InventoryMap(places.root(prefix_in(settings)))
        findings = examine(map, await opened.list(map.path))
        done, missed = await repair(opened, findings) if repairing else (0, 0)
        return findings, done, missed
    finally:
        await backend.close()


async def _opened(settings: Settings) -> Backend:
    """Open the store for a repair. Raise UserError, with advice if the service is running."""
    try:
        return await open_store(settings)
    except UserError as error:
        if isinstance(error.__cause__, Locked):
            raise UserError(f"{error}: stop it to repair; without --repair, this works while it runs") from error
        raise
