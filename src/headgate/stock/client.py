"""Call the service `headgate.inventory.v1`: methods have the names of its definition, and answers are its messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headgate.base.errors import HeadgateError, needing
from headgate.inventory.wire import inventory_pb2 as pb

if TYPE_CHECKING:
    import grpc

SERVICE = pb.DESCRIPTOR.services_by_name["Inventory"]
CALL_MAX_S = 30.0
PAGE_MAX = 1_000
LOOK_INTERVAL_S = 1.0
"""Time between two checks of a lease that waits."""
GRACE_S = 60
"""Time for which a lease continues to wait after its requester has stopped polling."""
END_S = 30.0
"""Time for which the client tries to end a lease while the service does not answer."""
PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED")
"""Status codes of temporary failures."""


class StockRefused(HeadgateError):
    """Report that the inventory refused a call; `status` is its code (NOT_FOUND, …), `detail` its reason."""

    def __init__(self, status: str, detail: str, number: int = 2) -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail, self.number = status, detail, number


class Stock:
    """Connect to an inventory as a user of a project in a partition. Close it, or use it in a `with`."""

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        user: str = "",
        project: str = "",
        partition: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Use the channel as `user` of `project`; omit both with a token, which names them."""
        self._channel = channel
        self._session = pb.Session(user=user, project=project, partition=partition)
        self._metadata = tuple((metadata or {}).items())

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        token: str = "",
        user: str = "",
        project: str = "",
        partition: str = "",
        credentials: grpc.ChannelCredentials | None = None,
    ) -> Self:
        """Connect to the service at HOST:PORT; pass grpc `credentials` if it speaks TLS."""
        with needing("an inventory's client", "inventory"):
            import grpc  # 19 MB, so only programs that connect load it
        channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
        metadata = {"authorization": f"Bearer {token}"} if token else {}
        return cls(channel, user=user, project=project, partition=partition, metadata=metadata)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def call(self, method: str, /, **fields: Any) -> Any:  # the message the method answers with
        """Call any method with the fields of its request, and return its answer.  Raise StockRefused."""
        # No generated stub is needed: the descriptor knows the types of requests and answers.
        read = GetMessageClass(SERVICE.methods_by_name[method].output_type).FromString
        made = self._channel.unary_unary(f"/{SERVICE.full_name}/{method}", _bytes, read)
        with _refusals():
            return made(self._request(method, fields), timeout=CALL_MAX_S, metadata=self._metadata)

    def watch(self, *, revision: int = 0, **fields: Any) -> Iterator[pb.WatchResponse]:  # fields of the request
        """Yield changes of objects, from now on or after `revision`.  Raise StockRefused."""
        path = f"/{SERVICE.full_name}/Watch"
        made = self._channel.unary_stream(path, _bytes, pb.WatchResponse.FromString)
        # Without a timeout: a watch lasts until the caller stops reading.
        with _refusals():
            yield from made(self._request("Watch", {"revision": revision, **fields}), metadata=self._metadata)

    def search(self, *filters: str, sort: Sequence[str] = (), limit: int = 0) -> Iterator[pb.Object]:
        """Yield the objects that match one of the filters (`memory>=64 tag:gpu`), page by page; `-FIELD` sorts in
        descending order."""
        return paged(self.call, sort, limit, filters=filters)

    def create(
        self, type: str, name: str, properties: Mapping[str, str] | None = None, tags: Sequence[str] = ()
    ) -> pb.Object:
        """Create an object and return it.  Raise StockRefused."""
        made = pb.Object(type=type, name=name, properties=dict(properties or {}), tags=tags)
        answer: pb.ApplyResponse = self.call("Apply", steps=[pb.Step(create=made)])
        return answer.objects[0]

    @contextmanager
    def lease(
        self,
        search: str = "",
        *,
        hours: float = 1.0,
        amounts: Mapping[str, str] | None = None,
        wait_s: int = 0,
        note: str = "",
    ) -> Iterator[pb.Lease]:
        """Lease a machine, or `amounts` of an object, for the duration of the block; then return it.

        Raise StockRefused if the service refuses the lease, or if the lease cannot be ended and therefore lasts for its
        `hours`. Raise TimeoutError if nothing becomes available within `wait_s`.
        """
        lease = self.call(
            # The service ends the wait if this process dies in the meantime.
            "AskLease", search=search, duration_s=int(hours * 3_600), amounts=dict(amounts or {}), note=note,
            wait_s=wait_s + GRACE_S,
        )  # fmt: skip
        try:
            yield self._waited(lease, wait_s)
        except BaseException as error:
            try:
                self._end(lease.id)
            except StockRefused as refused:  # the caller must see its own error, not this one
                error.add_note(f"lease {lease.id} could not be returned: {refused}")
            raise
        self._end(lease.id)

    def _end(self, id: str) -> None:
        """End a lease. Try again while the service is unavailable, because otherwise the object would stay in use."""
        until_s = time.monotonic() + END_S
        while True:
            try:
                self.call("EndLease", id=id)
                return
            except StockRefused as refused:
                if refused.status == "NOT_FOUND":  # it has expired, or an earlier call ended it and its answer was lost
                    return
                if refused.status not in PASSING or time.monotonic() >= until_s:
                    raise
            time.sleep(LOOK_INTERVAL_S)

    def _waited(self, lease: pb.Lease, wait_s: int) -> pb.Lease:
        until_s = time.monotonic() + wait_s
        while lease.state == pb.Lease.WAITING:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{lease.search or 'a machine'} was not available within {wait_s} s")
            time.sleep(min(LOOK_INTERVAL_S, left_s))
            lease = self.call("GetLease", id=lease.id)
        return lease

    def _request(self, method: str, fields: Mapping[str, Any]) -> Message:  # fields of any message
        return GetMessageClass(SERVICE.methods_by_name[method].input_type)(session=self._session, **fields)


def paged(
    call: Callable[..., Any],  # the answer of the method
    sort: Sequence[str],
    limit: int,
    **wanted: Any,  # fields of the request
) -> Iterator[pb.Object]:
    """Yield what `call("Search", …)` finds, page by page; at most `limit` objects if it is not 0; `-FIELD` sorts in
    descending order."""
    sorts = [pb.Sort(field=one.removeprefix("-"), descending=one.startswith("-")) for one in sort]
    token, left = "", limit
    while True:
        size = min(PAGE_MAX, left) if left else PAGE_MAX
        page = call("Search", sort=sorts, page_token=token, limit=size, **wanted)
        yield from page.objects
        # A page may be shorter than requested.
        left -= len(page.objects)
        token = page.next_page_token
        if not token or (limit and left <= 0):
            return


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate gRPC errors raised inside into StockRefused; a caller with a channel has gRPC installed."""
    import grpc

    try:
        yield
    except grpc.RpcError as error:
        code = error.code()
        raise StockRefused(code.name, error.details() or "", code.value[0]) from error
