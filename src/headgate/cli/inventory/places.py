"""Implement the commands on partitions, types and definitions."""

from __future__ import annotations

import json

import click

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.inventory import calls, documents
from headgate.cli.terminal.say import say
from headgate.inventory.model import READ, WRITE
from headgate.inventory.names import is_uuid, normal
from headgate.inventory.wire import inventory_pb2 as pb

_file = click.option("--file", "-f", default="-", metavar="FILE", help="YAML. Default: standard input.")


@click.group("partition")
def partition() -> None:
    """Manage partitions: list, get, create, rename, delete."""


@partition.command("list")
@click.option(
    "--filter", "-f", "filters", multiple=True, metavar="NAME", help="Of these names; * at the end: begins so."
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
@click.option("--name", default="", help="Instead of a file.")
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
    """Give a partition another name; its uuid stays."""
    client = address.open()
    found = _partition(client, named)
    renamed = pb.Partition(uuid=found.uuid, name=name)
    # The generation makes the server refuse if somebody has changed the partition since it was looked up.
    client.call("SetPartition", partition=renamed, expected_generation=found.generation)


@partition.command("delete")
@click.argument("named", metavar="UUID-OR-NAME")
@calls.connected
def delete_partition(address: calls.ServiceAddress, named: str) -> None:
    """Delete a partition without objects."""
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
        raise UserError(f"there is no partition {named!r}; `headgate inventory partition list` shows those there are")
    return found


def _fits(text: str, pattern: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def types(name: str, provider: bool, what: str) -> click.Group:
    """Make the commands for types of objects, or of providers."""

    @click.group(name, help=f"{what.capitalize()}: list, get, set, delete.")
    def commands() -> None:
        pass

    def known(client: calls.InventoryClient) -> list[pb.Type]:
        return [one for one in client.call("ListTypes").types if one.provider == provider]

    def shown(address: calls.ServiceAddress, found: list[pb.Type]) -> None:
        rows = ((one.code, "project" if one.per_project else "partition", one.description) for one in found)
        calls.show(address, found, ("code", "names are unique in a", "description"), rows)

    @commands.command("list", help=f"List {what}.")
    @click.option("--filter", "-f", "filters", multiple=True, metavar="CODE", help="* at the end: begins so.")
    @calls.connected
    def list_(address: calls.ServiceAddress, filters: tuple[str, ...]) -> None:
        shown(
            address, [one for one in known(address.open()) if not filters or any(_fits(one.code, f) for f in filters)]
        )

    @commands.command("get", help="Show one.")
    @click.argument("code")
    @calls.connected
    def get(address: calls.ServiceAddress, code: str) -> None:
        found = [one for one in known(address.open()) if one.code == code]
        if not found:
            raise UserError(f"there is no type {code!r}; `headgate inventory {name} list` shows those there are")
        shown(address, found)

    @commands.command("set", help="Create or change one.")
    @click.argument("code")
    @click.option("--description", default="", help="What it is.")
    @click.option("--per-project", is_flag=True, help="Names are unique in a project, not in a partition.")
    @calls.connected
    def set_(address: calls.ServiceAddress, code: str, description: str, per_project: bool) -> None:
        type = pb.Type(code=code, description=description, per_project=per_project, provider=provider)
        address.open().call("SetType", type=type)

    @commands.command("delete", help="Delete a type without objects.")
    @click.argument("code")
    @calls.connected
    def delete(address: calls.ServiceAddress, code: str) -> None:
        address.open().call("DeleteType", code=code, provider=provider)

    return commands


def definitions(type: str) -> click.Group:
    """Make the commands for definitions of a type; without a type, they take `--object-type`."""
    commands = click.Group("definition", help="Definitions: what objects look like, who may see and change what.")
    for command in (_get(type), _set(type), _delete(type)):
        command.params += [
            click.Option(["--global", "-g", "everywhere"], is_flag=True, help="That of every partition."),
            click.Option(["--in", "within"], default="", metavar="PARTITION", help="Default: the session's."),
            click.Option(["--type", "-t", "kind"], default="", help="Of one kind; of providers, their type."),
        ]
        if not type:
            command.params.append(click.Option(["--object-type", "of"], required=True, help="Of objects of this type."))
        commands.add_command(command)
    return commands


def _place(type: str, address: calls.ServiceAddress, options: dict[str, str]) -> pb.Place:
    within = "" if options["everywhere"] else options["within"] or address.partition
    return pb.Place(type=type or options["of"], partition=within, kind=options["kind"])


def _get(type: str) -> click.Command:
    @click.command("get", help="Show the one that applies; with --exact, the one set just there.")
    @click.option("--exact", is_flag=True, help="Do not fall back to what applies otherwise.")
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
    @click.command("delete", help="Remove the one set just there.")
    @calls.connected
    def command(address: calls.ServiceAddress, /, **options: str) -> None:
        address.open().call("DeleteDefinition", place=_place(type, address, options))

    return command
