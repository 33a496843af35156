"""`headgate inventory serve`: the service alone."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from headgate.base.errors import UserError
from headgate.cli.inventory.faces import make_inventory, run_inventory
from headgate.cli.logs import set_up
from headgate.cli.process import open_store
from headgate.cli.settings import Settings, read_or_defaults
from headgate.map.inventory.places import ORIGINAL_PREFIX
from headgate.store.etcd.address import SCHEME
from headgate.store.store import Store


@click.command("serve")
@click.option("--config", metavar="FILE", help="The settings file; without one, defaults apply.")
@click.option("--store", metavar="URL", help="Instead of the settings' [store] url.")
@click.option(
    "--etcd-endpoints",
    envvar="RUNM_METADATA_STORAGE_ETCD_ENDPOINTS",
    metavar="HOST:PORT,…",
    help="Use the etcd at these addresses as store.",
)
@click.option(
    "--compatible",
    is_flag=True,
    default=None,
    help="For programs of runm-metadata: their prefix (runm-metadata/), keys in etcd without a slash before it, and "
    "their definitions.",
)
@click.option("--prefix", envvar="RUNM_METADATA_STORAGE_ETCD_KEY_PREFIX", help="What is before runm/metadata.")
@click.option("--listen", envvar="RUNM_METADATA_BIND_HOST", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", envvar="RUNM_METADATA_BIND_PORT", type=click.IntRange(0, 65535), help="Port; 0: a free one.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Port for JSON over HTTP.")
@click.option("--cert-path", type=click.Path(path_type=Path), help="Certificate, PEM.")
@click.option("--key-path", type=click.Path(path_type=Path), help="Its key.")
@click.option("--client-ca-path", type=click.Path(path_type=Path), help="Callers need a certificate of this authority.")
@click.option(
    "--identity", type=click.Choice(["verify", "trust"]), help="Verify callers, or trust the names that they give."
)
@click.option("--verbose", is_flag=True, help="Say more.")
def command(config: str | None, verbose: bool, **given: object) -> None:
    """Serve the inventory: gRPC services runm.RunmMetadata and headgate.inventory.v1, health and reflection."""
    set_up(level="debug" if verbose else "info")
    asyncio.run(_serve(with_given(read_or_defaults(config), given)))


def with_given(settings: Settings, given: dict[str, object]) -> Settings:
    """Return the settings with the options of the command line, which take precedence."""
    inventory = {name: str(value) for name, value in given.items() if value is not None}
    compatible = inventory.pop("compatible", "") == "True"
    if compatible:
        inventory["compatible"] = "true"
        inventory.setdefault("prefix", ORIGINAL_PREFIX)
    endpoints, store = inventory.pop("etcd_endpoints", None), inventory.pop("store", None)
    known = store or (settings.store_url if not endpoints else "")
    if compatible and known.startswith(SCHEME):
        endpoints, store = _hosts(known), None
    store = store or (endpoints and _as_before(endpoints, inventory))
    if "listen" in inventory:
        inventory["listen_address"] = inventory.pop("listen")
    for name in ("cert_path", "key_path", "client_ca_path"):
        if name in inventory:
            # Paths on the command line are relative to the current directory, those of a file to the file.
            inventory[name] = str(Path(inventory[name]).absolute())
    values = {**settings.values, "inventory": {**settings.values.get("inventory", {}), **inventory}}
    if store:
        values["store"] = {**settings.values.get("store", {}), "url": _absolute(store)}
    return Settings(settings.path, values, settings.connections, settings.authenticators)


def _as_before(endpoints: str, inventory: dict[str, str]) -> str:
    """Return the URL of the store with the layout of runm-metadata: beside other data, with keys that begin with
    the given prefix."""
    hosts, _, options = endpoints.replace("http://", "").partition("?")
    more = f"&{options}" if options else ""
    if inventory.get("prefix", "/").startswith("/"):
        return f"{SCHEME}{hosts}?shared=yes{more}"
    within = inventory["prefix"].strip("/")
    inventory["prefix"] = "/"  # the keys contain it already
    return f"{SCHEME}{hosts}/{within}?shared=yes&bare=yes{more}"


def _hosts(url: str) -> str:
    """Return the servers and options of a URL that names no place in etcd.  Raise UserError for one that does."""
    hosts, question, options = url.removeprefix(SCHEME).partition("?")
    if "/" in hosts.rstrip("/"):
        raise UserError(
            "--compatible says itself where things are in etcd: give the store as etcd://HOST:PORT, and --prefix "
            f"if it is not {ORIGINAL_PREFIX}"
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
