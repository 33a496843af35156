"""Store values of any size in entries of limited size: a small value in one entry, a large one as a pointer and pieces.

Pieces are named by their content and written before the pointer. The pointer is replaced in one operation, so a reader
finds either the old value or the new one.  A crash in between leaves pieces that no pointer names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from headgate.recipes.codec import pack, unpack
from headgate.recipes.mirror import Mirror
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, At, Delete, Entry, Op, Put

# Leaves room in a commit (COMMIT_SIZE_MAX_BYTES) for the other operations that belong to the same change.
INLINE_MAX_BYTES = 400_000
PIECE_SIZE_BYTES = 400_000
PIECES_MAX = 1_000
STALE_MAX = OPS_MAX // 2
"""Limit on the pieces of an old value that one commit deletes."""


class Pointer(msgspec.Struct, frozen=True, tag="blob"):
    """Represent a large value, whose pieces are at `<path>/<digest>/<ten digits>`."""

    digest: str
    pieces: int
    size_bytes: int


def ops(path: str, plain: bytes) -> list[Op]:
    """Return the operations that write the value: its pieces, then the pointer. Pieces may be written in earlier
    commits."""
    value = pack(plain)
    if len(value) <= INLINE_MAX_BYTES:
        return [Put(path, value)]
    pointer = _pointer(value)
    chunks = [value[i : i + PIECE_SIZE_BYTES] for i in range(0, len(value), PIECE_SIZE_BYTES)]
    named = zip(_pieces(path, pointer), chunks, strict=True)
    return [*(Put(name, chunk) for name, chunk in named), Put(path, msgspec.json.encode(pointer))]


async def laid(put: Callable[[Op], Awaitable[None]], path: str, plain: bytes) -> tuple[Op, list[str]]:
    """Write the pieces of the value one by one with `put`. Return the operation that writes the pointer, for the
    commit that makes the value valid, and the paths of the pieces."""
    *pieces, pointer = ops(path, plain)
    for piece in pieces:
        await put(piece)
    return pointer, [piece.path for piece in pieces if isinstance(piece, Put)]


def delete_ops(path: str, plain: bytes) -> list[Op]:
    """Return the operations that remove the value `plain`."""
    value = pack(plain)
    pieces = _pieces(path, _pointer(value)) if len(value) > INLINE_MAX_BYTES else []
    return [Delete(path), *(Delete(piece) for piece in pieces)]


def assemble(entry: Entry, entries: Iterable[Entry]) -> bytes:
    """Return the value at `entry`; its pieces are among `entries`. Raise ValueError when one is missing."""
    pointer = _read_pointer(entry.value)
    if pointer is None:
        return unpack(entry.value)
    by_path = {e.path: e.value for e in entries}
    try:
        value = b"".join(by_path[name] for name in _pieces(entry.path, pointer))
    except KeyError as error:
        raise ValueError(f"piece {error} of {entry.path} is missing") from error
    return unpack(value)


async def write(store: Store, path: str, plain: bytes, *, guards: Sequence[At] = ()) -> None:
    """Replace the value at `path`, which may have any size. The pieces of the old value are deleted in the same
    commit."""
    old = await store.get(path)
    *pieces, pointer = ops(path, plain)
    for piece in pieces:
        # Pieces are written one by one, because two of them and their paths may already exceed the size of a commit.
        await store.commit([], [piece], guards=guards)
    # If the value has not changed, its pieces have the same names, and must not be deleted as stale.
    fresh = {op.path for op in pieces if isinstance(op, Put)}
    try:
        old_pointer = _read_pointer(old.value) if old else None
    except ValueError:  # a damaged value is replaced
        old_pointer = None
    stale = [Delete(name) for name in (_pieces(path, old_pointer) if old_pointer else []) if name not in fresh]
    await store.commit([At(path, old.version if old else None)], [pointer, *stale[:STALE_MAX]], guards=guards)
    for start in range(STALE_MAX, len(stale), STALE_MAX):
        await store.commit([], stale[start : start + STALE_MAX], guards=guards)


async def read(store: Store, path: str) -> bytes | None:
    """Read the value: one request when it is small, two when it has pieces."""
    found = await taken(store, path)
    return None if found is None else found[0]


async def taken(store: Store, path: str) -> tuple[bytes, list[Op]] | None:
    """Return the value and the operations that remove it, for the reader's own commit. Raise ValueError if a piece is
    missing."""
    entry = await store.get(path)
    if entry is None:
        return None
    pieces = _pieces_of(entry)
    return assemble(entry, await store.list(path) if pieces else ()), [Delete(name) for name in (path, *pieces)]


def mirrored(mirror: Mirror, path: str) -> tuple[bytes, list[Op]] | None:
    """Read the mirror like `taken`. Use it only for values that are written once, so that a late mirror cannot show an
    older one. Return None if the value may not have arrived yet."""
    entry = mirror.get(path)
    if entry is None:
        return None
    pieces = [(name, mirror.get(name)) for name in _pieces_of(entry)]
    found = [piece for _, piece in pieces if piece is not None]
    if len(found) < len(pieces):
        return None
    return assemble(entry, found), [Delete(name) for name in (path, *(name for name, _ in pieces))]


def _pointer(value: bytes) -> Pointer:
    count = -(-len(value) // PIECE_SIZE_BYTES)
    # The name depends on the content, so readers can never join pieces of two values.
    return Pointer(hashlib.sha256(value).hexdigest()[:32], count, len(value))


def _pieces_of(entry: Entry) -> list[str]:
    pointer = _read_pointer(entry.value)
    return _pieces(entry.path, pointer) if pointer else []


def _pieces(path: str, pointer: Pointer) -> list[str]:
    return [f"{path}/{pointer.digest}/{n:010d}" for n in range(pointer.pieces)]


def _read_pointer(value: bytes) -> Pointer | None:
    if not value.startswith(b'{"type":"blob"'):
        return None
    found = msgspec.json.decode(value, type=Pointer)
    # A damaged number must not make every reader build millions of paths.
    if not 0 <= found.pieces <= PIECES_MAX:
        raise ValueError(f"a value has at most {PIECES_MAX} pieces, not {found.pieces}")
    return found
