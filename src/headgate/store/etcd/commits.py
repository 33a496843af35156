"""A commit as one transaction of etcd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import NAME_DIGITS, Append, At, Conflict, Delete, Entry, Lease, Op, Put


class Commit:
    """`key`: path -> key.  Numbers of appended children are guessed, first to be the first ones, and compared."""

    def __init__(self, key: Callable[[str], bytes], checks: Sequence[At], ops: Sequence[Op]) -> None:
        self._key, self._ops = key, ops
        self._checks = list(dict.fromkeys(checks))
        parents = dict.fromkeys(op.parent for op in ops if isinstance(op, Append))
        self._counters: dict[str, tuple[int, int]] = dict.fromkeys(parents, (0, 0))
        """Parent -> the number that was given last, and the version of its counter."""
        self._paths: list[str] = []

    def request(self) -> pb.TxnRequest:
        self._paths, numbers = self._named()
        success = [self._op(op, path) for op, path in zip(self._ops, self._paths, strict=True)]
        for parent, last in numbers.items():
            put = pb.PutRequest(key=self._counter(parent), value=str(last).encode())
            success.append(pb.RequestOp(request_put=put))
        compares = [_compare(self._key(check.path), check.version or 0) for check in self._checks]
        compares += [_compare(self._counter(parent), version) for parent, (_, version) in self._counters.items()]
        keys = [*(self._key(check.path) for check in self._checks), *map(self._counter, self._counters)]
        failure = [pb.RequestOp(request_range=pb.RangeRequest(key=key)) for key in keys]
        return pb.TxnRequest(compare=compares, success=success, failure=failure)

    def written(self, answer: pb.TxnResponse) -> list[Entry | None]:
        """One an operation; None for a Delete."""
        revision, found = answer.header.revision, list[Entry | None]()
        for op, path, one in zip(self._ops, self._paths, answer.responses, strict=False):
            if isinstance(op, Delete):
                found.append(None)
                continue
            before = one.response_put.prev_kv
            found.append(Entry(path, op.value, revision, before.create_revision or revision, op.lease))
        return found

    def refused(self, answer: pb.TxnResponse) -> None:
        """Raises Conflict; when it were only the numbers, they are known now."""
        kvs = [one.response_range.kvs for one in answer.responses]
        for check, found in zip(self._checks, kvs, strict=False):
            if (found[0].mod_revision if found else None) != check.version:
                raise Conflict(check)
        for parent, found in zip(self._counters, kvs[len(self._checks) :], strict=True):
            self._counters[parent] = (int(found[0].value), found[0].mod_revision) if found else (0, 0)

    def _named(self) -> tuple[list[str], dict[str, int]]:
        """A path for each operation, and the last number given below each parent; a name that another operation has
        already is passed over."""
        taken = {op.path for op in self._ops if not isinstance(op, Append)}
        numbers = {parent: last for parent, (last, _) in self._counters.items()}
        paths = []
        for op in self._ops:
            path = "" if isinstance(op, Append) else op.path
            while isinstance(op, Append) and (not path or path in taken):
                numbers[op.parent] += 1
                path = f"{op.parent}/{op.prefix}{numbers[op.parent]:0{NAME_DIGITS}d}"
            paths.append(path)
        return paths, numbers

    def _counter(self, parent: str) -> bytes:
        return self._key(f"{parent}/~")

    def _op(self, op: Op, path: str) -> pb.RequestOp:
        key = self._key(path)
        if isinstance(op, Delete):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
        put = pb.PutRequest(key=key, value=op.value, lease=_id(op.lease), prev_kv=isinstance(op, Put))
        return pb.RequestOp(request_put=put)


def _id(lease: Lease | None) -> int:
    return int(lease, 16) if lease else 0


def _compare(key: bytes, version: int) -> pb.Compare:
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=version)
