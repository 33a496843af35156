"""Define the group of commands `headgate inventory`, and the options that all of them share."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import click
from click.core import ParameterSource

from headgate.cli.groups import LazyGroup
from headgate.cli.identity.pages import token_for
from headgate.cli.inventory import bulk, leases, places
from headgate.cli.inventory.calls import ServiceAddress
from headgate.cli.inventory.objects import group, watch
from headgate.cli.terminal.say import say
from headgate.inventory.model import PROVIDER

ENVIRONMENT = {
    "RUNM_HOST": "Host of the service; default: localhost.",
    "RUNM_PORT": "Port of the service; default: 10002.",
    "RUNM_USER": "User who calls the service.",
    "RUNM_PROJECT": "Project of the call.",
    "RUNM_PARTITION": "Partition of the call, by name or uuid.",
    "RUNM_ROLES": "Roles of the user, separated by commas; accepted only with the operator's token.",
    "HEADGATE_TOKEN": "A bearer token that identifies the caller.",
}
LATER = {
    "demo": "headgate.cli.scenario.machines:command",
    "serve": "headgate.cli.inventory.service:serve_alone",
    "fsck": "headgate.cli.inventory.service:fsck",
}
"""Name of a command -> its place; these import large parts of the program, so they are loaded only when used."""
_path = click.Path(path_type=Path)


ANYWHERE = ("--json", "--quiet", "-q", "--verbose", "-v")
"""Options that may also follow the command."""


class InventoryCommands(LazyGroup):
    later: ClassVar = LATER
    extras: ClassVar = dict.fromkeys(LATER, "inventory")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # After `--` everything is a value, even if it looks like an option.
        end = args.index("--") if "--" in args else len(args)
        if set(LATER) & set(args[:end]):  # these commands have their own options of these names
            return super().parse_args(ctx, args)
        ours = [word for word in args[:end] if word in ANYWHERE]
        return super().parse_args(ctx, [*ours, *(word for word in args[:end] if word not in ANYWHERE), *args[end:]])


@click.group(name="inventory", cls=InventoryCommands)
@click.option("--host", envvar="RUNM_HOST", default="localhost", show_default=True, help="Host of the service.")
@click.option("--port", envvar="RUNM_PORT", type=int, default=10002, show_default=True, help="Port of the service.")
@click.option("--user", envvar="RUNM_USER", default="", help="User who calls the service.")
@click.option("--project", envvar="RUNM_PROJECT", default="", help="Project of the call.")
@click.option("--partition", envvar="RUNM_PARTITION", default="", help="Partition of the call, by name or uuid.")
@click.option(
    "--roles",
    envvar="RUNM_ROLES",
    default="",
    help="Roles of the user, separated by commas; accepted only with the operator's token.",
)
@click.option(
    "--token",
    envvar="HEADGATE_TOKEN",
    default="",
    help="A bearer token. Default: the operator's.",
)
@click.option("--ca", type=_path, help="Use TLS, and trust server certificates of this CA (PEM).")
@click.option("--certificate", type=_path, help="Client certificate that identifies the caller (PEM).")
@click.option("--key", type=_path, help="Private key of --certificate.")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Do not print confirmations.")
@click.option("--verbose", "-v", is_flag=True, help="Print all fields of created and changed objects.")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Manage machines and other objects in the inventory service.

    The exit status is the number of the gRPC status that the service returned.
    """
    if context.invoked_subcommand not in (*LATER, "proto", "helpenv"):
        guessed = context.get_parameter_source("host") is ParameterSource.DEFAULT
        options["token"] = token_for(options["host"], options["port"], given=options["token"], guessed=guessed)
    context.obj = ServiceAddress(**options)


@click.command("proto")
def proto() -> None:
    """Print the protobuf definitions of the service, from which you can generate clients in other languages."""
    say(resources.files("headgate.inventory.wire").joinpath("inventory.proto").read_text(), nl=False)


@click.command("helpenv")
def helpenv() -> None:
    """Show the environment variables that replace options, and their current values."""
    for name, what in ENVIRONMENT.items():
        value = os.environ.get(name, "")
        shown = "(set)" if value and name == "HEADGATE_TOKEN" else value
        say(f"{name:<16}{shown:<24}{what}")


providers = group("provider", PROVIDER, "providers")
providers.add_command(places.definitions(PROVIDER))
for added in (
    places.partition,
    places.types("type", False, "types of objects"),
    places.types("provider-type", True, "types of providers"),
    providers,
    group("group", "runm.provider_group", "groups of providers"),
    group("image", "runm.image", "images"),
    group("machine", "runm.machine", "machines"),
    group("object", "", "objects of every type"),
    places.definitions(""),
    leases.lease,
    leases.quota,
    leases.health,
    bulk.import_,
    bulk.export,
    watch,
    proto,
    helpenv,
):
    command.add_command(added)
