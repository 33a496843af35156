"""`headgate map`: what the store contains, as declared and as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from headgate.base.errors import UserError
from headgate.cli.settings import find, read
from headgate.cli.store.urls import open_to_read, user_error
from headgate.cli.terminal.say import say
from headgate.map.check import check, show_tree
from headgate.map.places import ROOT
from headgate.map.trees import StoreTree, page, trees
from headgate.store.types import Entry, StoreError

_store = click.option(
    "--store",
    "store",
    metavar="FILE|URL",
    default="",
    help="The store's file or URL, by default that of the settings; a running Headgate is not disturbed.",
)
_root = click.option("--root", default=ROOT, show_default=True, help="Where in the store the gate's tree is.")


@click.group(name="map", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Print the reference page of everything in the store."""
    if context.invoked_subcommand is None:
        say(page(), nl=False)


@command.command()
@_store
@_root
@click.argument("prefix", default="")
def tree(store: str, root: str, prefix: str) -> None:
    """Show the entries at and below PREFIX with their contents."""
    lines = list(show_tree(_entries(store, trees(root)), trees(root), prefix))
    if not lines:
        raise UserError(f"nothing is stored at or below {prefix or root}; `headgate map` lists the places")
    for line in lines:
        say(line)


@command.command("check")
@_store
@_root
@click.option("--all", "every", is_flag=True, help="Also list the places of the contract without an entry now.")
@click.pass_context
def check_(context: click.Context, store: str, root: str, every: bool) -> None:
    """Report entries that are not on the map or cannot be read. The exit status is 1 if there are any."""
    findings = check(_entries(store, trees(root)), trees(root))
    say(findings.text(every=every))
    context.exit(0 if findings.good else 1)


def _entries(store: str, among: Sequence[StoreTree]) -> Sequence[Entry]:
    """List the entries of these trees, each tree as of one moment."""
    try:
        return asyncio.run(_listed(store or read(find(None)).store_url, among))
    except StoreError as error:
        raise user_error(error) from error


async def _listed(store: str, among: Sequence[StoreTree]) -> Sequence[Entry]:
    reader = await open_to_read(store)
    try:
        return [entry for tree in among for entry in await reader.list(tree.root)]
    finally:
        await reader.close()
