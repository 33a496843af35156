"""Start the launcher, which assigns machines to builds, and creates machines in the clouds of the settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from headgate.adapters.nodes.clouds.imagefiles import FetchedImages
from headgate.adapters.nodes.ssh import Scanner
from headgate.base.errors import needing
from headgate.cli.resources import cloud, cloud_names, rate
from headgate.cli.settings import Settings
from headgate.gate.state.returns import Sealed
from headgate.ports.secrets import SecretError, Secrets
from headgate.services.configuration import Tenants
from headgate.services.context import Context
from headgate.services.membership import Membership
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.images.keeper import ImageKeeper
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.store.types import At

if TYPE_CHECKING:
    from headgate.cli.launch.process import Process

MB_BYTES = 1_000_000
NODES = ("headgate", "nodes")
"""Pseudo connection and project whose key encrypts data that only the build of a machine may read."""


async def add_launcher(process: Process, *, always: bool = True) -> None:
    """Serve the inventory if the settings have a section for it, and start the launcher. Without `always`, start the
    launcher only if there is a cloud in the settings or a tenant with labels. Raise UserError."""
    settings, context = process.settings, process.context
    serving = "inventory" in settings.values
    launching = always or bool(cloud_names(settings)) or any(one.labels for one in process.tenants().values())
    if not serving and not launching:
        return
    with needing("an inventory, which every launcher uses,", "inventory"):
        from headgate.cli.inventory import service

    process.serves_inventory = serving
    if serving:
        process.servers.append(service.serve_inventory(settings, process.inventory, process.stop))
    if launching:
        making = _making(settings, context, process.tenants, process.keys, process.stack)
        launcher = await service.make_launcher(settings, context, process.inventory, process.tenants, making)
        process.join(Membership(context, "launcher"), launcher.run)


def _making(
    settings: Settings, context: Context, tenants: Tenants, keys: Secrets | None, stack: AsyncExitStack
) -> Callable[[At], MachineMaker] | None:
    """Return the factory of the machine maker for the clouds in the settings, or None without clouds. Raise
    UserError."""
    names = cloud_names(settings)
    if not names:
        return None
    clouds = {name: cloud(settings, name) for name in names}
    for one in clouds.values():
        stack.push_async_callback(one.close)
    scan = Scanner()

    async def seal(plain: bytes) -> Sealed:
        if keys is None:
            # Fail rather than store the secret unencrypted, where everyone with access to the store could read it.
            raise SecretError("a machine's secret cannot be stored unencrypted: set [keystore] password")
        return await keys.sealed(*NODES, plain)

    files = FetchedImages(
        settings.place("launcher", "image_dir", "fetched-images"),
        _image_roots(settings, context),
        _image_size_max(settings),
    )

    def making(guard: At) -> MachineMaker:
        accounts = {name: CloudAccount(name, one, rate(settings, name)) for name, one in clouds.items()}
        return MachineMaker(context, tenants, accounts, scan, seal, guard, ImageKeeper(context, accounts, files, guard))

    return making


def _image_roots(settings: Settings, context: Context) -> tuple[str, ...]:
    """Return the URL prefixes from which images that jobs build may be fetched."""
    # Jobs choose the URLs of their images: without this list, they could make the launcher fetch from internal hosts.
    own = [f"{context.pages.url}/t/"] if context.pages.url else []
    logs = [settings.get("logs", "root")] if settings.get("logs", "root") else []
    return (*own, *logs, *settings.get("launcher", "image_sources").split())


def _image_size_max(settings: Settings) -> int:
    """Return the size limit of an image file in bytes."""
    return int(settings.number("launcher", "image_size_max_mb") * MB_BYTES)
