"""`headgate inventory serve`: the service, alone."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

import click

from headgate.adapters.identity.tokens import authenticator
from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.process import open_store
from headgate.cli.settings import SEARCHED, Settings, find, read
from headgate.map.inventory.places import InventoryMap, root
from headgate.services.inventory.inventory import Inventory
from headgate.store.store import Store
from headgate.web.inventory.http import create_app
from headgate.web.inventory.identity import Identity, Sessions, Trusting, Verifying
from headgate.web.inventory.server import Tls, serve, v1_parts
from headgate.web.serve import serve as serve_web

log = logging.getLogger("headgate.inventory")


@click.command("serve")
@click.option("--config", metavar="FILE", help="The settings file; without one, everything is as its reference says.")
@click.option("--store", metavar="URL", help="Instead of the settings' [store] url.")
@click.option("--prefix", envvar="RUNM_METADATA_STORAGE_ETCD_KEY_PREFIX", help="What is before runm/metadata.")
@click.option("--listen", envvar="RUNM_METADATA_BIND_HOST", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", envvar="RUNM_METADATA_BIND_PORT", type=click.IntRange(0, 65535), help="Port; 0: a free one.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Port of the same as JSON over HTTP.")
@click.option("--cert-path", type=click.Path(path_type=Path), help="Certificate, PEM.")
@click.option("--key-path", type=click.Path(path_type=Path), help="Its key.")
@click.option("--client-ca-path", type=click.Path(path_type=Path), help="Callers need a certificate of this authority.")
@click.option("--identity", type=click.Choice(["verify", "trust"]), help="Verify who calls, or believe them.")
@click.option("--verbose", is_flag=True, help="Say more.")
def command(config: str | None, verbose: bool, **given: object) -> None:
    """Serve the inventory: gRPC services runm.RunmMetadata and headgate.inventory.v1, health and reflection."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    asyncio.run(_serve(with_given(settings_of(config), given)))


def settings_of(config: str | None) -> Settings:
    """Of the file, if one was given or is found; an inventory needs none."""
    if config is None and not any(Path(one).expanduser().is_file() for one in SEARCHED):
        return Settings(Path("headgate.conf").absolute(), {})
    return read(find(config))


def with_given(settings: Settings, given: dict[str, object]) -> Settings:
    """Options of the command line win over the file."""
    said = {name: str(value) for name, value in given.items() if value is not None}
    store = said.pop("store", None)
    if "listen" in said:
        said["listen_address"] = said.pop("listen")
    for name in ("cert_path", "key_path", "client_ca_path"):
        if name in said:
            said[name] = str(Path(said[name]).absolute())
    values = {**settings.values, "inventory": {**settings.values.get("inventory", {}), **said}}
    if store:
        values["store"] = {**settings.values.get("store", {}), "url": _absolute(store)}
    return Settings(settings.path, values, settings.connections, settings.authenticators)


def _absolute(url: str) -> str:
    """A file given on the command line is relative to where that is given."""
    return f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}" if url.startswith("sqlite:///") else url


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    backend = await open_store(settings)
    try:
        await serve_on(settings, Store(backend), stop)
    finally:
        await backend.close()


async def serve_on(settings: Settings, store: Store, stop: asyncio.Event) -> None:
    """The service as the settings say, until `stop`.  Raises UserError."""
    inventory = make_inventory(settings, store)
    identity = _identity(settings)
    host, port = settings.get("inventory", "listen_address"), settings.get("inventory", "port")
    sessions = Sessions(identity, inventory)
    works = [serve(inventory, sessions, _joined(host, port), _tls(settings), stop, _announce("gRPC", host))]
    if http_port := settings.get("inventory", "http_port"):
        app = create_app(v1_parts(sessions, inventory))
        works.append(serve_web(app, host, int(http_port), stop, _announce("JSON over HTTP", host)))
    await inventory.begin()
    await run_until(stop, inventory.journal.run(), *works)


def make_inventory(settings: Settings, store: Store) -> Inventory:
    places = InventoryMap(root(settings.get("inventory", "prefix")))
    return Inventory(store, places, lambda: int(time.time() * 1000))


def _identity(settings: Settings) -> Identity:
    """Raises UserError when everybody would be believed, from anywhere."""
    host = settings.get("inventory", "listen_address")
    tokens = [authenticator(name, said, settings.path) for name, said in settings.authenticators.items()]
    verified = bool(tokens) or bool(settings.get("inventory", "client_ca_path"))
    wanted = settings.get("inventory", "identity")
    if wanted != "trust" and verified:
        return Verifying(tokens)
    if wanted == "verify":
        raise UserError(
            f"{settings.path}: [inventory] identity is verify, but there is nothing to verify with: "
            "add an [auth NAME] section or client_ca_path"
        )
    if not _is_loopback(host):
        raise UserError(
            f"[inventory] listens on {host}, where anybody could say to be anybody: add an [auth NAME] section or "
            "client_ca_path; or listen on 127.0.0.1, where callers are believed"
        )
    log.warning("development mode: whoever can connect to %s is believed to be who they say", host)
    return Trusting()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(settings: Settings) -> Tls | None:
    """Raises UserError."""
    paths = [settings.get("inventory", name) for name in ("cert_path", "key_path", "client_ca_path")]
    if not any(paths):
        return None
    if not paths[0] or not paths[1]:
        raise UserError(f"{settings.path}: [inventory] needs both cert_path and key_path for TLS")
    certificate, key, ca = (settings.place("inventory", n, "") for n in ("cert_path", "key_path", "client_ca_path"))
    return Tls(certificate, key, ca if paths[2] else None)


def _joined(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _announce(protocol: str, host: str) -> Callable[[int], None]:
    def bound(port: int) -> None:
        print(f"The inventory is served; {protocol} is at {_joined(host, str(port))}", flush=True)

    return bound
