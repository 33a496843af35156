"""Call every method of both services with random input.

Each call must end with a status that names the problem, never with UNKNOWN or INTERNAL, and the indexes must always
match the records.

`python -m headgate.testing.inventory.calls SECONDS` runs for that long; it prints a call that goes wrong.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headgate.base.tasks import run_until
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.fsck import examine
from headgate.services.inventory.inventory import Inventory
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import DEADLINE_S
from headgate.web.inventory.identity import CallerSessions, Trusting
from headgate.web.inventory.server import RUNM, V1, serve

AT_ONCE = 8
CALL_MAX_S = DEADLINE_S
# A watch never ends on its own.
WATCH_MAX_S = 0.05
WRONG = {"UNKNOWN", "INTERNAL", "DATA_LOSS", "UNIMPLEMENTED", "UNAVAILABLE"}
"""Statuses with which no call may end."""
PARTITION, ODD_UUID = "a" * 32, "5" * 32
TEXTS = (
    "", "site", "part", "alice", "blue", "red", "runm.machine", "runm.image", "runm.provider", "runm.compute", "runm.*",
    "n", "na", "na/b", "zone", "kind", "fast", "name", "properties.zone", "code", "*", ".", "..", "/", "%", "%2F", "é",
    "a\x00b", "\u2028", "😀", " ", "'", '"', "{}", "[", '{"type": "object"}', '{"type": 7}', '{"$ref": "http://x/y"}',
    '{"properties": {"properties": {"required": ["zone"]}}}', '{"pattern": "("}', '{"minLength": 1e400}', "x" * 300,
    "x" * 5_000, "x" * 1_000_000, PARTITION, ODD_UUID, ODD_UUID.upper(), "55555555-5555-5555-5555-555555555555",
    "g" * 32, "a" * 31, "../../etc", "true", "-1", "9" * 40,
)  # fmt: skip
NUMBERS = (0, 0, 1, 2, 3, 7, 2**31, 2**32 - 1)
LARGE = (0, 0, 1, 2**32, 2**53, 2**63, 2**64 - 1)
Channel = Any  # grpc.aio.Channel: its stubs know no calls of bytes
METHODS: tuple[MethodDescriptor, ...] = (*RUNM.methods, *V1.methods)


class FuzzCaller:
    """Call the services. `statuses` counts how calls ended; `wrong` lists forbidden endings."""

    def __init__(self, channel: Channel, seed: int) -> None:
        self._channel, self._random = channel, Random(seed)
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._uuids: list[str] = [PARTITION]

    async def call(self) -> None:
        method = self._random.choice(METHODS)
        message = self._message(method.input_type)
        self._sign(message)
        data = message.SerializeToString()
        # Bytes that are no message at all must end with a status, too.
        if self._random.random() < 0.05:
            data = self._damaged(data)
        try:
            status = await self._sent(method, data)
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            if not error.details():
                self.wrong.append(f"{method.full_name}: {status} without a word")
            if status in WRONG:
                problem = f"{method.full_name}: {status}: {error.details()}"
                self.wrong.append(f"{problem}\n{str(message)[:2_000]}")
        self.statuses[status] += 1

    async def _sent(self, method: MethodDescriptor, data: bytes) -> str:
        path = f"/{method.containing_service.full_name}/{method.name}"
        read = GetMessageClass(method.output_type).FromString
        if not method.server_streaming:
            self._learn(await self._channel.unary_unary(path, response_deserializer=read)(data, timeout=CALL_MAX_S))
            return "OK"
        limit_s = WATCH_MAX_S if method.name == "Watch" else CALL_MAX_S
        async for found in self._channel.unary_stream(path, response_deserializer=read)(data, timeout=limit_s):
            self._learn(found)
        return "OK"

    def _learn(self, found: Message) -> None:
        """Remember the names of existing objects, so that later calls sometimes use them."""
        for field, value in found.ListFields():
            if field.name == "uuid" and len(self._uuids) < 200:
                self._uuids.append(value)
            elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
                for one in value if field.is_repeated else [value]:
                    self._learn(one)

    def _sign(self, message: Any) -> None:  # any message
        """Give most calls a valid session, so that they pass the first checks."""
        if self._random.random() < 0.9 and "session" in message.DESCRIPTOR.fields_by_name:
            message.session.user, message.session.project = "alice", self._random.choice(("blue", "red"))
            message.session.partition = PARTITION

    def _damaged(self, data: bytes) -> bytes:
        found = bytearray(data or b"\x00")
        for _ in range(self._random.randrange(1, 4)):
            found[self._random.randrange(len(found))] = self._random.randrange(256)
        return bytes(found[: self._random.randrange(1, len(found) + 1)])

    def _message(self, kind: Descriptor, depth: int = 0) -> Message:
        found = GetMessageClass(kind)()
        for field in kind.fields:
            if self._random.random() < (0.35 if depth else 0.15):
                continue
            self._fill(found, field, depth)
        return found

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            values = getattr(message, field.name)
            for _ in range(self._count()):
                values[self._text()] = self._text()
        elif inner is not None and field.is_repeated:
            if depth < 5:
                getattr(message, field.name).extend(self._message(inner, depth + 1) for _ in range(self._count()))
        elif inner is not None:
            getattr(message, field.name).CopyFrom(self._message(inner, depth + 1))
        elif field.is_repeated:
            getattr(message, field.name).extend(self._value(field) for _ in range(self._count()))
        else:
            setattr(message, field.name, self._value(field))

    def _count(self) -> int:
        return self._random.choice((0, 1, 1, 1, 2, 3)) if self._random.random() < 0.98 else 120

    def _value(self, field: FieldDescriptor) -> object:
        if field.enum_type is not None:
            return self._random.choice((0, 1, 7))
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._text()
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._random.random() < 0.5
        return self._random.choice(
            NUMBERS
            if field.type == FieldDescriptor.TYPE_UINT32
            else LARGE[: 5 if field.type == FieldDescriptor.TYPE_INT64 else 7]
        )

    def _text(self) -> str:
        if self._random.random() < 0.25:
            return self._random.choice(self._uuids)
        return self._random.choice(TEXTS)


async def fuzz(seed: int, seconds: float, calls_max: int = 1 << 62) -> FuzzCaller:
    """Call for this long, or this many times. The returned caller lists the failures."""
    store = Store(MemoryBackend())
    inventory = Inventory(store, InventoryMap(), lambda: 1_000)
    await inventory.begin()
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = serve(inventory, CallerSessions(Trusting(), inventory), "127.0.0.1:0", None, stop, bound.set_result)
    running = asyncio.ensure_future(run_until(stop, inventory.journal.run(), server))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await bound}") as channel:
            caller = FuzzCaller(channel, seed)
            await _furnish(channel)
            end = time.monotonic() + seconds
            while time.monotonic() < end and caller.statuses.total() < calls_max and not caller.wrong:
                # A random call may have deleted the partition, without which the rest would test nothing.
                if not await inventory.facts.store.get(inventory.places.partitions.by_uuid(PARTITION).path):
                    await _furnish(channel)
                await asyncio.gather(*(caller.call() for _ in range(AT_ONCE)))
    finally:
        stop.set()
        await running
    findings = examine(inventory.places, await store.list(inventory.places.path))
    # Every call may end well and the indexes still be wrong.
    caller.wrong += [f"{one.path}: {one.what}" for one in findings]
    return caller


async def _furnish(channel: Channel) -> None:
    request = GetMessageClass(RUNM.methods_by_name["partition_create"].input_type)(
        session={"user": "alice"}, partition={"uuid": PARTITION, "name": f"site{time.monotonic_ns()}"}
    )
    await channel.unary_unary(f"/{RUNM.full_name}/partition_create")(request.SerializeToString())


def main(arguments: Sequence[str]) -> int:
    seconds, seed = float(arguments[0]) if arguments else 60.0, int(time.time())
    caller = asyncio.run(fuzz(seed, seconds))
    print(f"seed {seed}: {caller.statuses.total()} calls: {dict(caller.statuses.most_common())}")
    for one in caller.wrong:
        print(one)
    return 1 if caller.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
