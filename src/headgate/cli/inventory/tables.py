"""Show objects: as a table for people, as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from headgate.base.texts import plain_json
from headgate.cli.inventory.client import ServiceAddress
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal
from headgate.cli.terminal.table import TextTable
from headgate.inventory.wire import inventory_pb2 as pb


def show(
    address: ServiceAddress, found: Sequence[Message], heads: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    if address.json:
        # Text of others in JSON is escaped for terminals, too.
        say(plain_json(json.dumps([as_dict(one) for one in found], indent=1, ensure_ascii=False)))
        return
    table = TextTable(*heads)
    for row in rows:
        table.add_row(*row)
    Terminal().print(table)


def as_dict(message: Message) -> dict[str, object]:
    """Convert a message, with the names of its definition."""
    return dict(MessageToDict(message, preserving_proto_field_name=True))


def objects(address: ServiceAddress, found: Sequence[pb.Object]) -> None:
    rows = ((one.name, one.type, one.project, one.uuid, _properties(one), " ".join(sorted(one.tags))) for one in found)
    show(address, found, ("name", "type", "project", "uuid", "properties", "tags"), rows)


def _properties(one: pb.Object) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(one.properties.items()))


def one_object(address: ServiceAddress, found: pb.Object) -> None:
    if address.json:
        say(plain_json(json.dumps(as_dict(found), indent=1, ensure_ascii=False)))
        return
    terminal = Terminal()
    for name in ("name", "type", "project", "uuid", "partition", "generation"):
        if value := getattr(found, name):
            terminal.print(f"{name:<12}{value}")
    for key, value in sorted(found.properties.items()):
        terminal.print(f"{'property':<12}{key}={value}")
    if found.tags:
        terminal.print(f"{'tags':<12}{' '.join(sorted(found.tags))}")


def made(address: ServiceAddress, found: pb.Object) -> None:
    """Print what was created or changed: its uuid, all of it with --verbose or --json, or nothing with --quiet."""
    if address.verbose or address.json:
        one_object(address, found)
    elif not address.quiet:
        say(found.uuid)
