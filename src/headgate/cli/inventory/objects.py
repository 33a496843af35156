"""Implement the commands on objects of one type or of all: list, get, create, set, delete, history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.groups import CommandGroup
from headgate.cli.inventory import calls, documents
from headgate.cli.terminal.say import say
from headgate.inventory.filters import Expression, PropertyFilter, parse
from headgate.inventory.model import KIND, PROVIDER
from headgate.inventory.names import Invalid, is_uuid
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.stock.client import paged

ORDERS = {"": pb.Item.AS_TEXT, "<": pb.Item.LESS, "<=": pb.Item.AT_MOST, ">": pb.Item.MORE, ">=": pb.Item.AT_LEAST}
KINDS = {1: "created", 2: "updated", 3: "deleted"}

filtered = click.option(
    "filters",
    "--filter",
    "-f",
    multiple=True,
    metavar="EXPR",
    help="Conditions, all of which an object must meet; with several --filter, it must match one of them. FIELD=VALUE: "
    "FIELD is partition, type, project, uuid, name or a property; VALUE* matches a prefix. KEY>=8 (also <, <=, >) "
    "compares numbers; KEY alone requires the property; tag:NAME requires the tag. A leading ! forbids what follows; "
    "of all conditions that begin with any:, at least one must hold.",
)


def wanted(filters: tuple[str, ...], type: str) -> list[pb.Filter]:
    """Return the filters for objects of one type, or of all. Raise UserError."""
    try:
        return [_message(parse(one), type) for one in filters] or ([pb.Filter(types=[type])] if type else [])
    except Invalid as error:
        raise UserError(str(error)) from error


def _message(expression: Expression, type: str) -> pb.Filter:
    found, types = pb.Filter(), list(expression.types)
    kinds = types if type == PROVIDER else []  # for providers, `type` means the property with the provider's type
    for name in ("require", "any", "forbid"):
        for kind in ("items", "keys", "tags"):
            values = getattr(expression.wanted, f"{name}_{kind}")
            getattr(found, f"{name}_{kind}").extend(
                _item(one) if isinstance(one, PropertyFilter) else one for one in values
            )
    if len(kinds) == 1:
        found.require_items.append(pb.Item(key=KIND, value=kinds[0].removesuffix("*"), prefix=kinds[0].endswith("*")))
    elif kinds:
        found.any_items.extend(pb.Item(key=KIND, value=k.removesuffix("*"), prefix=k.endswith("*")) for k in kinds)
    found.types.extend([type] if type else types)
    found.partitions.extend(expression.partitions)
    found.uuids.extend(expression.uuids)
    found.project, found.every_project, found.uuid_prefix = (
        expression.project,
        expression.every_project,
        expression.uuid_prefix,
    )
    found.name, found.name_prefix = expression.name, expression.name_prefix
    return found


def _item(one: PropertyFilter) -> pb.Item:
    return pb.Item(key=one.key, value=one.value, prefix=one.prefix, order=ORDERS[one.order])


def search(
    client: calls.InventoryClient, any: list[pb.Filter], sort: tuple[str, ...] = (), limit: int = 0
) -> Iterator[pb.Object]:
    """Yield the objects of all pages, at most `limit` if that is set."""
    return paged(client.call, sort, limit, any=any)


def find(client: calls.InventoryClient, type: str, named: str) -> pb.Object:
    """Find an object by uuid or by name."""
    if is_uuid(named):
        found: pb.Object = client.call("GetObject", uuid=named)
        return found
    if not type:
        several = list(search(client, [pb.Filter(name=named)], limit=2))
        if len(several) == 1:
            return several[0]
        what = "there is no object" if not several else "there are several objects"
        raise UserError(f"{what} with the name {named!r}" + ("; give the uuid or the type" if several else ""))
    found = client.call("GetObject", type=type, name=named)
    return found


def group(name: str, type: str, what: str) -> click.Group:
    """Return the commands for one type or, without a type, for all."""

    @click.group(name, help=f"Manage {what}: list, get, create, set, delete, history.", cls=CommandGroup)
    def commands() -> None:
        pass

    @commands.command("list", help=f"List {what} in the session's partition and project.")
    @filtered
    @click.option(
        "--sort",
        multiple=True,
        metavar="FIELD",
        help="Sort by name, uuid, …, properties.KEY or numbers.KEY; -FIELD sorts in descending order.",
    )
    @click.option("--limit", type=click.IntRange(1), default=None, help="Maximum number of objects.")
    @calls.connected
    def list_(
        address: calls.ServiceAddress, filters: tuple[str, ...], sort: tuple[str, ...], limit: int | None
    ) -> None:
        found = list(search(address.open(), wanted(filters, type), sort, limit + 1 if limit else 0))
        if limit and len(found) > limit:
            del found[limit:]
            say(f"More {what} match; only {limit} are shown (--limit).", err=True)
        if not sort and limit is None:  # the order of the store's index is meaningless to people
            found.sort(key=lambda one: (one.partition, one.type, one.project, one.name))
        calls.objects(address, found)

    @commands.command("get", help="Show one object, by uuid or name.")
    @click.argument("named", metavar="UUID-OR-NAME")
    @calls.connected
    def get(address: calls.ServiceAddress, named: str) -> None:
        calls.one_object(address, find(address.open(), type, named))

    @commands.command("create", help="Create an object from YAML, and print its uuid.")
    @click.option("--file", "-f", default="-", metavar="FILE", help="YAML file. Default: standard input.")
    @click.option("--dry-run", is_flag=True, help="Check the object without creating it.")
    @calls.connected
    def create(address: calls.ServiceAddress, file: str, dry_run: bool) -> None:
        step = pb.Step(create=documents.described(file, type))
        found = address.open().call("Apply", steps=[step], validate_only=dry_run).objects[0]
        if not dry_run:
            calls.made(address, found)
        elif not address.quiet:
            say(f"{found.name} can be created")

    commands.add_command(_set(type))
    commands.add_command(_delete(type))
    commands.add_command(_history(type))
    return commands


def _set(type: str) -> click.Command:
    @click.command(
        "set",
        help="Change an object: KEY=VALUE sets a property, KEY- removes it, +TAG adds a tag, %TAG removes it.",
    )
    @click.argument("named", metavar="UUID-OR-NAME")
    @click.argument("changes", nargs=-1)
    @click.option("--name", default="", help="The new name.")
    @click.option(
        "--generation", type=click.IntRange(0), default=0, help="Change the object only if it has this generation."
    )
    @calls.connected
    def command(
        address: calls.ServiceAddress, named: str, changes: tuple[str, ...], name: str, generation: int
    ) -> None:
        client = address.open()
        patch = pb.Patch(uuid=find(client, type, named).uuid, expected_generation=generation, name=name)
        for change in changes:
            key, equals, value = change.partition("=")
            if equals and key:
                patch.set_properties[key] = value
            elif change.startswith("+") and change[1:]:
                patch.add_tags.append(change[1:])
            elif change.startswith("%") and change[1:]:
                patch.remove_tags.append(change[1:])
            elif change.endswith("-") and change[:-1]:
                patch.remove_properties.append(change[:-1])
            else:
                raise UserError(f"{change!r} is not a valid change: use KEY=VALUE, KEY-, +TAG or %TAG")
        calls.made(address, client.call("Apply", steps=[pb.Step(update=patch)]).objects[0])

    return command


def _delete(type: str) -> click.Command:
    @click.command("delete", help="Delete objects by uuid or name, or all that match a filter.")
    @click.argument("named", nargs=-1, metavar="[UUID-OR-NAME]…")
    @filtered
    @calls.connected
    def command(address: calls.ServiceAddress, named: tuple[str, ...], filters: tuple[str, ...]) -> None:
        if not named and not filters:
            raise UserError("name the objects to delete, by uuid, name or --filter")
        client = address.open()
        found = [find(client, type, one) for one in named]
        found += search(client, wanted(filters, type)) if filters else []
        # Remove duplicates: an object may be named and also match a filter, and its second deletion would fail.
        for one in {one.uuid: one for one in found}.values():
            # With the generation, the server refuses if the object changed, as it may no longer match the filter.
            removal = pb.Removal(uuid=one.uuid, expected_generation=one.generation)
            client.call("Apply", steps=[pb.Step(delete=removal)])
            if not address.quiet:
                say(one.uuid)
        if not found:
            raise UserError("no object matches; nothing was deleted")

    return command


def _history(type: str) -> click.Command:
    @click.command("history", help="Show the changes of an object: when, who, what, and its new state.")
    @click.argument("named", metavar="UUID-OR-NAME")
    @calls.connected
    def command(address: calls.ServiceAddress, named: str) -> None:
        client = address.open()
        changes = client.call("History", uuid=find(client, type, named).uuid).changes
        rows = ((_when(one.at_ms), one.user, KINDS.get(one.kind, "?"), _brief(one.new)) for one in changes)
        calls.show(address, changes, ("when", "who", "what", "then"), rows)

    return command


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _brief(one: pb.Object) -> str:
    words = [one.name, *(f"{key}={value}" for key, value in sorted(one.properties.items()))]
    return " ".join([*words, *(f"+{tag}" for tag in sorted(one.tags))])


@click.command("watch")
@filtered
@click.option(
    "--revision", type=click.IntRange(0), default=0, help="Begin at this revision of the store. Default: begin now."
)
@click.option("--count", type=click.IntRange(1), default=None, help="Exit after this many changes.")
@calls.connected
def watch(address: calls.ServiceAddress, filters: tuple[str, ...], revision: int, count: int | None) -> None:
    """Print changes to objects as they happen, one per line."""
    printed = 0
    for answer in address.open().watch(any=wanted(filters, ""), revision=revision):
        for change in answer.changes:
            if address.json:
                say(plain_json(json.dumps(calls.as_dict(change), ensure_ascii=False)))
            else:
                about = change.new if change.HasField("new") else change.old
                when = f"{answer.revision} {_when(change.at_ms)} {change.user}"
                say(f"{when} {KINDS.get(change.kind, '?')} {about.type} {about.uuid} {_brief(about)}")
            printed += 1
            if printed == count:
                return
