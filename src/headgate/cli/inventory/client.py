"""Talking to the service from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headgate.base.errors import UserError
from headgate.inventory.wire import inventory_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Inventory"]
CALL_MAX_S = 30.0


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the service is and who asks, as options and environment say."""

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

    def open(self) -> Client:
        """Raises UserError."""
        target = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        if self.ca is None:
            return Client(self, grpc.insecure_channel(target))
        try:
            pair = [one.read_bytes() if one else None for one in (self.key, self.certificate)]
            credentials = grpc.ssl_channel_credentials(self.ca.read_bytes(), *pair)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return Client(self, grpc.secure_channel(target, credentials))


class Client:
    """`client.call("Search", any=[...])`; a refusal is said, and its number is the exit status of the program."""

    def __init__(self, said: Connection, channel: grpc.Channel) -> None:
        self.said, self._channel = said, channel
        told = {"authorization": said.token and f"Bearer {said.token}", "roles": said.roles}
        self._metadata = tuple((name, value) for name, value in told.items() if value)

    def call(self, name: str, /, **fields: Any) -> Any:  # the message the method answers with
        method = SERVICE.methods_by_name[name]
        read = GetMessageClass(method.output_type).FromString
        call = self._channel.unary_unary(self._path(name), _bytes, read)
        try:
            return call(self._request(name, fields), timeout=CALL_MAX_S, metadata=self._metadata)
        except grpc.RpcError as error:
            refused(error)

    def watch(self, **fields: Any) -> Iterator[pb.WatchResponse]:
        call = self._channel.unary_stream(self._path("Watch"), _bytes, pb.WatchResponse.FromString)
        try:
            yield from call(self._request("Watch", fields), metadata=self._metadata)
        except grpc.RpcError as error:
            refused(error)

    def _path(self, name: str) -> str:
        return f"/{SERVICE.full_name}/{name}"

    def _request(self, name: str, fields: dict[str, Any]) -> Message:  # fields of any message
        session = pb.Session(user=self.said.user, project=self.said.project, partition=self.said.partition)
        return GetMessageClass(SERVICE.methods_by_name[name].input_type)(session=session, **fields)


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


def refused(error: grpc.RpcError) -> NoReturn:
    """Says why, and ends the program with the number of the status."""
    code, detail = error.code(), error.details()
    hint = {
        grpc.StatusCode.UNAVAILABLE: "; is it running there? (--host, --port, and --ca if it speaks TLS)",
        grpc.StatusCode.FAILED_PRECONDITION: " (--user, --project, --partition, or RUNM_USER, …)"
        if "session" in str(detail)
        else "",
    }.get(code, "")
    click.echo(f"headgate: {detail}{hint}", err=True)
    sys.exit(code.value[0])


connected = click.make_pass_decorator(Connection)
