"""Call the inventory service from the command line, and print its answers as tables or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from headgate.base.errors import UserError, needing
from headgate.base.files import bytes_of
from headgate.base.texts import plain_json
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal, TextTable
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.stock import Stock, StockRefused

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Hold the address of the service and the identity of the caller, from options and environment variables."""

    host: str = "localhost"
    port: int = 10002
    user: str = ""
    project: str = ""
    partition: str = ""
    roles: str = ""
    token: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def open(self) -> InventoryClient:
        """Open a client. Raise UserError."""
        with needing("headgate inventory", "inventory"):
            import grpc  # late, because it takes 19 MB
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        # `--ca` implies that the service uses TLS.
        if self.ca is None:
            return InventoryClient(self, grpc.insecure_channel(target))
        try:
            pair = [bytes_of(one) if one else None for one in (self.key, self.certificate)]
            credentials = grpc.ssl_channel_credentials(bytes_of(self.ca), *pair)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return InventoryClient(self, grpc.secure_channel(target, credentials))


class InventoryClient:
    """Call the service: `client.call("Search", any=[...])`. On an error, print it, and exit with the number of its gRPC
    status."""

    def __init__(self, address: ServiceAddress, channel: grpc.Channel) -> None:
        headers = {"authorization": address.token and f"Bearer {address.token}", "roles": address.roles}
        metadata = {name: value for name, value in headers.items() if value}
        self.address = address
        self._stock = Stock(
            channel, user=address.user, project=address.project, partition=address.partition, metadata=metadata
        )

    def call(self, name: str, /, **fields: Any) -> Any:  # the message type of the method's answer
        try:
            return self._stock.call(name, **fields)
        except StockRefused as error:
            refused(error)

    def watch(self, **fields: Any) -> Iterator[pb.WatchResponse]:
        try:
            yield from self._stock.watch(**fields)
        except StockRefused as error:
            refused(error)


def refused(error: StockRefused) -> NoReturn:
    """Print the error, and exit with the number of its gRPC status."""
    hint = {
        "UNAVAILABLE": "; is the service running there? (--host, --port, and --ca if it uses TLS)",
        "FAILED_PRECONDITION": " (--user, --project, --partition, or RUNM_USER, …)"
        if "session" in error.detail
        else "",
    }.get(error.status, "")
    say(f"headgate: {error.detail}{hint}", err=True)
    sys.exit(error.number)


connected = click.make_pass_decorator(ServiceAddress)


def show(
    address: ServiceAddress, found: Sequence[Message], heads: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    if address.json:
        # `plain_json` escapes control characters of untrusted text, which could affect the terminal.
        say(plain_json(json.dumps([as_dict(one) for one in found], indent=1, ensure_ascii=False)))
        return
    table = TextTable(*heads)
    for row in rows:
        table.add_row(*row)
    Terminal().print(table)


def as_dict(message: Message) -> dict[str, object]:
    """Convert a message to a dictionary, with the field names of its definition."""
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
    """Print a created or changed object: its uuid, all of it with --verbose or --json, or nothing with --quiet."""
    if address.verbose or address.json:
        one_object(address, found)
    elif not address.quiet:
        say(found.uuid)
