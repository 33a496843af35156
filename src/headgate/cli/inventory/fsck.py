"""`headgate inventory fsck`: check whether the indexes agree with the records."""

from __future__ import annotations

import asyncio

import click

from headgate.base.errors import UserError
from headgate.cli.inventory.faces import prefix_in
from headgate.cli.inventory.serve import with_given
from headgate.cli.process import open_store, open_store_to_read
from headgate.cli.settings import Settings, read_or_defaults
from headgate.cli.terminal.say import say
from headgate.map.inventory.places import InventoryMap, root
from headgate.services.inventory.fsck import InventoryFinding, examine, repair
from headgate.store.sqlite import Locked
from headgate.store.store import Store
from headgate.store.types import Backend


@click.command("fsck")
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--store", metavar="URL", help="Instead of the settings' [store] url.")
@click.option("--compatible", is_flag=True, default=None, help="The data is stored as runm-metadata stores it.")
@click.option("--prefix", help="What is before runm/metadata.")
@click.option(
    "--repair", "repairing", is_flag=True, help="Repair what can be repaired; on SQLite, stop the service first."
)
@click.pass_context
def command(context: click.Context, /, config: str | None, repairing: bool, **given: object) -> None:
    """Report every missing, stray or dangling entry; the exit status is 1 if one is left.

    The inventory may be served meanwhile.
    """
    settings = with_given(read_or_defaults(config), given)
    findings, done, missed = asyncio.run(_examined(settings, repairing))
    for one in findings:
        say(f"{one.path}: {one.what}{'' if one.repair else ' (a person must see to it)'}")
    if repairing:
        changed = f"; {missed} changed meanwhile: run this again" if missed else ""
        say(f"{len(findings)} findings, {done} put right{changed}")
    else:
        say(f"{len(findings)} findings")
    context.exit(0 if done == len(findings) else 1)


async def _examined(settings: Settings, repairing: bool) -> tuple[list[InventoryFinding], int, int]:
    """Return the errors found, how many were repaired, and how many changed meanwhile."""
    # Only a repair needs the lock of SQLite; everybody else looks beside the service.
    backend = await (_opened(settings) if repairing else open_store_to_read(settings))
    try:
        opened = Store(backend)
        places = InventoryMap(root(prefix_in(settings)))
        findings = examine(places, await opened.list(places.path))
        done, missed = await repair(opened, findings) if repairing else (0, 0)
        return findings, done, missed
    finally:
        await backend.close()


async def _opened(settings: Settings) -> Backend:
    """Open the inventory. Raise UserError, which says what to do if the inventory is being served."""
    try:
        return await open_store(settings)
    except UserError as error:
        if isinstance(error.__cause__, Locked):
            raise UserError(f"{error}: stop it to repair; without --repair this looks beside it") from error
        raise
