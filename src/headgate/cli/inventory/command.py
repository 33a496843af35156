"""`headgate inventory`."""

from __future__ import annotations

import click

from headgate.cli.inventory.serve import command as serve


@click.group(name="inventory")
def command() -> None:
    """Machines and other objects: serve, list, change, watch."""


command.add_command(serve)
