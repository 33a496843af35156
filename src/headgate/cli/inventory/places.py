"""Implement the commands on partitions, types and definitions."""

from __future__ import annotations

import json

import click

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.groups import CommandGroup
from headgate.cli.inventory import calls, documents
from headgate.cli.terminal.say import say
from headgate.inventory.model import READ, WRITE
from headgate.inventory.names import is_uuid, normal
from headgate.inventory.wire import inventory_pb2 as pb

_file = click.option("--file", "-f", default="-", metavar="FILE", help="YAML file. Default: standard input.")


@click.group("partition", cls=CommandGroup)
def partition() -> None:
    """Manage partitions: list, get, create, rename, delete."""


@partition.command("list")
@click.option(
    "--filter", "-f", "filters", multiple=True, metavar="NAME", help="List only this name; NAME* matches a prefix."
)
@calls.connected
def list_partitions(address: calls.ServiceAddress, filters: tuple[str, ...]) -> None:
    """List the partitions."""
    found = [one for one in _partitions(address.open()) if not filters or any(_fits(one.name, f) for f in filters)]
    calls.show(address, found, ("name", "uuid"), ((one.name, one.uuid) for one in found))


@partition.command("get")
@click.argument("named", metavar="UUID-OR-NAME")
@calls.connected
def get_partition(address: calls.ServiceAddress, named: str) -> None:
    """Show one partition."""
    found = _partition(address.open(), named)
    calls.show(address, [found], ("name", "uuid"), [(found.name, found.uuid)])


@partition.command("create")
@_file
@click.option("--name", default="", help="Name of the partition, instead of a file.")
@calls.connected
def create_partition(address: calls.ServiceAddress, file: str, name: str) -> None:
    """Create a partition, and print its uuid."""
    wanted = pb.Partition(name=name) if name else documents.partition(file)
    found = address.open().call("SetPartition", partition=wanted)
    if address.verbose or address.json:
        calls.show(address, [found], ("name", "uuid"), [(found.name, found.uuid)])
    elif not address.quiet:
        say(found.uuid)


@partition.command("rename")
@click.argument("named", metavar="UUID-OR-NAME")
@click.argument("name")
@calls.connected
def rename_partition(address: calls.ServiceAddress, named: str, name: str) -> None:
    """Rename a partition; its uuid does not change."""
    client = address.open()
    found = _partition(client, named)
    renamed = pb.Partition(uuid=found.uuid, name=name)
    # With the generation, the server refuses if somebody changed the partition since the lookup.
    client.call("SetPartition", partition=renamed, expected_generation=found.generation)


@partition.command("delete")
@click.argument("named", metavar="UUID-OR-NAME")
@calls.connected
def delete_partition(address: calls.ServiceAddress, named: str) -> None:
    """Delete a partition that has no objects."""
    address.open().call("DeletePartition", partition=named)


def _partitions(client: calls.InventoryClient) -> list[pb.Partition]:
    found: list[pb.Partition] = []
    token = ""
    while True:
        answer = client.call("ListPartitions", page_token=token)
        found += answer.partitions
        token = answer.next_page_token
        if not token:
            return found


def _partition(client: calls.InventoryClient, named: str) -> pb.Partition:
    # A uuid may be written with or without dashes.
    wanted = normal(named) if is_uuid(named) else named
    found = next((one for one in _partitions(client) if wanted in (one.uuid, one.name)), None)
    if found is None:
        raise UserError(f"there is no partition {named!r}; `headgate inventory partition list` shows all partitions")
    return found


def _fits(text: str, pattern: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def types(name: str, provider: bool, what: str) -> click.Group:
    """Return the commands for types of objects, or of providers."""

    @click.group(name, help=f"Manage {what}: list, get, set, delete.", cls=CommandGroup)
    def commands() -> None:
        pass

    def known(client: calls.InventoryClient) -> list[pb.Type]:
        return [one for one in client.call("ListTypes").types if one.provider == provider]

    def shown(address: calls.ServiceAddress, found: list[pb.Type]) -> None:
        rows = ((one.code, "project" if one.per_project else "partition", one.description) for one in found)
        calls.show(address, found, ("code", "names are unique in a", "description"), rows)

    @commands.command("list", help=f"List {what}.")
    @click.option(
        "--filter", "-f", "filters", multiple=True, metavar="CODE", help="List only this code; CODE* matches a prefix."
    )
    @calls.connected
    def list_(address: calls.ServiceAddress, filters: tuple[str, ...]) -> None:
        shown(
            address, [one for one in known(address.open()) if not filters or any(_fits(one.code, f) for f in filters)]
        )

    @commands.command("get", help="Show one type.")
    @click.argument("code")
    @calls.connected
    def get(address: calls.ServiceAddress, code: str) -> None:
        found = [one for one in known(address.open()) if one.code == code]
        if not found:
            raise UserError(f"there is no type {code!r}; `headgate inventory {name} list` shows all types")
        shown(address, found)

    @commands.command("set", help="Create or change a type.")
    @click.argument("code")
    @click.option("--description", default="", help="Description of the type.")
    @click.option(
        "--per-project", is_flag=True, help="Names of objects are unique within a project, not within a partition."
    )
    @calls.connected
    def set_(address: calls.ServiceAddress, code: str, description: str, per_project: bool) -> None:
        type = pb.Type(code=code, description=description, per_project=per_project, provider=provider)
        address.open().call("SetType", type=type)

    @commands.command("delete", help="Delete a type that has no objects.")
    @click.argument("code")
    @calls.connected
    def delete(address: calls.ServiceAddress, code: str) -> None:
        address.open().call("DeleteType", code=code, provider=provider)

    return commands


def definitions(type: str) -> click.Group:
    """Return the commands for definitions of a type; without a type, they take `--object-type`."""
    commands = click.Group(
        "definition", help="Manage definitions: the properties of objects, and who may see and change them."
    )
    for command in (_get(type), _set(type), _delete(type)):
        command.params += [
            click.Option(["--global", "-g", "everywhere"], is_flag=True, help="The definition for all partitions."),
            click.Option(
                ["--in", "within"],
                default="",
                metavar="PARTITION",
                help="The definition for this partition. Default: the session's.",
            ),
            click.Option(
                ["--type", "-t", "kind"], default="", help="The definition for this kind; for providers, their type."
            ),
        ]
        if not type:
            command.params.append(click.Option(["--object-type", "of"], required=True, help="Type of the objects."))
        commands.add_command(command)
    return commands


def _place(type: str, address: calls.ServiceAddress, options: dict[str, str]) -> pb.Place:
    within = "" if options["everywhere"] else options["within"] or address.partition
    return pb.Place(type=type or options["of"], partition=within, kind=options["kind"])


def _get(type: str) -> click.Command:
    @click.command(
        "get", help="Show the definition that applies; with --exact, only one that is set for exactly this scope."
    )
    @click.option("--exact", is_flag=True, help="Do not fall back to a more general definition.")
    @calls.connected
    def command(address: calls.ServiceAddress, /, exact: bool, **options: str) -> None:
        found = address.open().call("GetDefinition", place=_place(type, address, options), exact=exact)
        if address.json:
            say(plain_json(json.dumps(calls.as_dict(found), indent=1, ensure_ascii=False)))
            return
        at = f"partition {found.place.partition}" if found.place.partition else "every partition"
        say(f"definition {found.definition.uuid} of {found.place.type} {found.place.kind} in {at}")
        say(plain_json(json.dumps(json.loads(found.definition.schema or "{}"), indent=1, ensure_ascii=False)))
        for one in found.definition.permissions:
            whom = " ".join(w for w in (one.project and f"project {one.project}", one.role and f"role {one.role}") if w)
            say(f"{one.key}: {whom or 'everybody'}: {'r' * one.read + 'w' * one.write or 'nothing'}")

    return command


def _set(type: str) -> click.Command:
    @click.command("set", help="Set a definition from YAML (property_definitions), and print its uuid.")
    @_file
    @calls.connected
    def command(address: calls.ServiceAddress, /, file: str, **options: str) -> None:
        compiled = documents.definition(file)
        permissions = [
            pb.Permission(
                key=key, project=one.project, role=one.role, read=bool(one.mask & READ), write=bool(one.mask & WRITE)
            )
            for key, rules in compiled.permissions.items()
            for one in rules
        ]
        given = pb.Definition(schema=compiled.schema, permissions=permissions)
        found = address.open().call("SetDefinition", place=_place(type, address, options), definition=given)
        if not address.quiet:
            say(found.definition.uuid)

    return command


def _delete(type: str) -> click.Command:
    @click.command("delete", help="Delete the definition that is set for exactly this scope.")
    @calls.connected
    def command(address: calls.ServiceAddress, /, **options: str) -> None:
        address.open().call("DeleteDefinition", place=_place(type, address, options))

    return command
