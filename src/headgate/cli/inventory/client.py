"""Call the service from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from headgate.base.errors import UserError, needing
from headgate.cli.terminal.say import say
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.stock import Stock, StockRefused

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Say where the service is and who calls, from options and environment."""

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
            import grpc  # 19 MB
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        # Naming an authority is the sign that the service speaks TLS.
        if self.ca is None:
            return InventoryClient(self, grpc.insecure_channel(target))
        try:
            pair = [one.read_bytes() if one else None for one in (self.key, self.certificate)]
            credentials = grpc.ssl_channel_credentials(self.ca.read_bytes(), *pair)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return InventoryClient(self, grpc.secure_channel(target, credentials))


class InventoryClient:
    """Call the service: `client.call("Search", any=[...])`. An error is printed, and the number of its status is
    the exit status."""

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
    """Print the error, and exit with the number of its status."""
    hint = {
        "UNAVAILABLE": "; is it running there? (--host, --port, and --ca if it speaks TLS)",
        "FAILED_PRECONDITION": " (--user, --project, --partition, or RUNM_USER, …)"
        if "session" in error.detail
        else "",
    }.get(error.status, "")
    say(f"headgate: {error.detail}{hint}", err=True)
    sys.exit(error.number)


connected = click.make_pass_decorator(ServiceAddress)
