"""Declare where entries are stored: a typed tree of places, which converts keys to paths and paths to keys."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, overload
from urllib.parse import quote, unquote

import msgspec

from headgate.base.errors import HeadgateError
from headgate.recipes import blob
from headgate.recipes.codec import decode, encode
from headgate.store.types import Delete, Op, Put

R = TypeVar("R")
D = TypeVar("D", bound="Dir")


class Undecodable(HeadgateError, ValueError):
    """Report a value that does not match the declaration of its place."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: cannot be read: {why}")
        self.path, self.why = path, why


@lru_cache(maxsize=10_000)
def escape(name: str) -> str:
    """Escape a name as one path component: all characters except `[A-Za-z0-9._-]` are percent-encoded. `unescape` is
    the inverse."""
    # As components of a path, these would name the directory itself or its parent.
    if name in ("", ".", ".."):
        # No other name is escaped to a single `%`.
        return "%" if not name else name.replace(".", "%2E")
    # `quote` does not escape `~`, but backends reserve names that begin with it.
    return quote(name, safe="").replace("~", "%7E")


def unescape(component: str) -> str:
    return "" if component == "%" else unquote(component)


def union(form: object) -> type[Any]:
    """Return a union of record types as one type, which decodes all of them."""
    return form  # type: ignore[return-value]  # msgspec accepts unions, but the type system cannot express that


class HasPath:
    """Combine paths below a path, and take them apart."""

    __slots__ = ()
    path: str

    def inside(self, *names: str) -> str:
        """Return the path of these names below this path; with an empty last name, the prefix of all paths below."""
        return "/".join((self.path, *names))

    def relative(self, path: str) -> str:
        """Return `path` relative to this path, or `path` itself if it is not below."""
        return path.removeprefix(f"{self.path}/")

    def holds(self, path: str) -> bool:
        """Return whether `path` is below this path."""
        return path.startswith(f"{self.path}/")


class Address(HasPath, msgspec.Struct, Generic[R], frozen=True):
    """Hold a path together with the type of the record stored there."""

    path: str
    type: type[R]

    def encode(self, record: R) -> bytes:
        return encode(record)

    def decode(self, value: bytes) -> R:
        """Decode the value of the entry. Raise Undecodable."""
        try:
            return decode(value, self.type)
        except ValueError as error:
            raise Undecodable(self.path, str(error)) from error

    def put(self, record: R) -> Put:
        return Put(self.path, encode(record))

    def blob(self, record: R) -> list[Op]:
        """Return the operations that write a value which may be too large for one entry."""
        return blob.ops(self.path, encode_plain(record))

    def delete(self) -> Delete:
        return Delete(self.path)


def encode_plain(record: object) -> bytes:
    """Encode a record without compression, as blobs are compressed separately."""
    return msgspec.json.encode(record)


class Dir(HasPath):
    """Declare a directory of places; the docstring of the subclass is its documentation. Declared children are created
    on first use and cached."""

    def __init__(self, path: str) -> None:
        self.path = path


class Guarded(NamedTuple):
    """Name the locks that the writer of this directory and below must hold, with their guards in the commit.

    Each is the path of a lock below the root, with keys as in the place's own template.
    """

    under: str = ""
    """The locks required for any write."""
    taken_under: str = ""
    """The locks required for a deletion; creating entries needs none."""

    def or_else(self, above: Guarded) -> Guarded:
        return Guarded(self.under or above.under, self.taken_under or above.taken_under)


UNGUARDED = Guarded()


class place(Generic[R]):
    """Declare one record of a known type.

    - `node`: persistent, sequence (children named by number), keyed (children named by their writer), sharded (any
      size, in pieces) or lock (a queue of contenders); "ephemeral" before it: deleted with the writer's session.
    - `own`: whether it is the value of the directory itself.
    - `seed`: whether it is one of the places of the contract.
    - `by`: the components that write it.
    - `under`, `taken_under`: see Guarded.
    """

    def __init__(
        self,
        type: type[R],
        doc: str,
        *,
        by: str,
        node: str = "persistent",
        own: bool = False,
        name: str = "",
        seed: bool = True,
        under: str = "",
        taken_under: str = "",
    ) -> None:
        self.type, self.doc, self.by, self.node, self.own, self.name, self.seed = type, doc, by, node, own, name, seed
        self.locks = Guarded(under, taken_under)

    def __set_name__(self, owner: type[Dir], name: str) -> None:
        self.attribute, self.name = name, "" if self.own else self.name or name.replace("_", "-")

    @overload
    def __get__(self, here: None, owner: type[Dir]) -> place[R]: ...
    @overload
    def __get__(self, here: Dir, owner: type[Dir]) -> Address[R]: ...
    def __get__(self, here: Dir | None, owner: type[Dir]) -> place[R] | Address[R]:
        if here is None:
            return self
        # The attribute hides this descriptor from now on, so the address is created only once per directory.
        found = Address(here.path if self.own else f"{here.path}/{self.name}", self.type)
        vars(here)[self.attribute] = found
        return found


class below(Generic[D]):
    """Declare one directory with a fixed name."""

    def __init__(
        self, dir: type[D], *, name: str = "", seed: bool = True, under: str = "", taken_under: str = ""
    ) -> None:
        self.dir, self.name, self.seed = dir, name, seed
        self.locks = Guarded(under, taken_under)

    def __set_name__(self, owner: type[Dir], name: str) -> None:
        self.attribute, self.name = name, self.name or name.replace("_", "-")

    @overload
    def __get__(self, here: None, owner: type[Dir]) -> below[D]: ...
    @overload
    def __get__(self, here: Dir, owner: type[Dir]) -> D: ...
    def __get__(self, here: Dir | None, owner: type[Dir]) -> below[D] | D:
        if here is None:
            return self
        found = self.dir(f"{here.path}/{self.name}")
        vars(here)[self.attribute] = found
        return found


class Each(HasPath, msgspec.Struct, Generic[D], frozen=True):
    path: str
    dir: type[D]

    def __call__(self, key: str) -> D:
        return self.dir(f"{self.path}/{escape(key)}")


class each(Generic[D]):
    """Declare one directory per key, below a directory of this name or, with `bare`, directly here.

    `doc` documents the directory of the keys, if it deserves a line on the reference page.
    """

    def __init__(
        self,
        dir: type[D],
        *,
        key: str,
        doc: str = "",
        name: str = "",
        bare: bool = False,
        seed: bool = True,
        under: str = "",
        taken_under: str = "",
    ) -> None:
        self.dir, self.key, self.doc, self.name, self.bare, self.seed = dir, key, doc, name, bare, seed
        self.locks = Guarded(under, taken_under)

    def __set_name__(self, owner: type[Dir], name: str) -> None:
        self.attribute, self.name = name, "" if self.bare else self.name or name.replace("_", "-")

    @overload
    def __get__(self, here: None, owner: type[Dir]) -> each[D]: ...
    @overload
    def __get__(self, here: Dir, owner: type[Dir]) -> Each[D]: ...
    def __get__(self, here: Dir | None, owner: type[Dir]) -> each[D] | Each[D]:
        if here is None:
            return self
        found = Each(here.path if self.bare else f"{here.path}/{self.name}", self.dir)
        vars(here)[self.attribute] = found
        return found


@dataclass(frozen=True, slots=True)
class PageRow:
    """Represent one line of the reference page."""

    template: str
    place: place[Any] | None
    """The place at the path; None for a directory without a value of its own."""
    doc: str
    seed: bool
    locks: Guarded


Declared = tuple[place[Any] | below[Any] | each[Any], ...]
_DECLARED: dict[type[Dir], Declared] = {}


def declared(dir: type[Dir]) -> Declared:
    """Return the declarations of a directory and its base classes, in source order."""
    found = _DECLARED.get(dir)
    if found is None:
        # The method order lists subclasses first.
        every = (p for owner in reversed(dir.__mro__) for p in vars(owner).values())
        found = _DECLARED[dir] = tuple(p for p in every if isinstance(p, place | below | each))
    return found


def render(dir: type[Dir], path: str, *, seed: bool = True, locks: Guarded = UNGUARDED) -> Iterator[PageRow]:
    """Yield every declared place below `path`."""
    for child in declared(dir):
        ours, needed = seed and child.seed, child.locks.or_else(locks)
        here = f"{path}/{child.name}" if child.name else path
        if isinstance(child, place):
            yield PageRow(here, child, child.doc, ours, needed)
            continue
        if isinstance(child, each):
            if child.doc:
                yield PageRow(here, None, child.doc, ours, needed)
            here = f"{here}/<{child.key}>"
        # Such a directory gets its row from the place that is its value.
        own = any(isinstance(p, place) and p.own for p in declared(child.dir))
        if not own:
            yield PageRow(here, None, inspect.getdoc(child.dir) or "", ours, needed)
        yield from render(child.dir, here, seed=ours, locks=needed)


@dataclass(frozen=True, slots=True)
class Located:
    """Describe the declaration that a path matches."""

    template: str
    place: place[Any] | None
    keys: dict[str, str]
    rest: str = ""
    """Path below the place itself: a piece of a blob, a contender for a lock, or a child of a sequence."""


def locate(dir: type[Dir], root: str, path: str) -> Located | None:
    """Return the declaration that `path` matches; None: it is not on the map."""
    if path != root and not path.startswith(root + "/"):
        return None
    names = path.removeprefix(root).strip("/")
    return _find(dir, root, names.split("/") if names else [], {})


def _find(dir: type[Dir], template: str, names: list[str], keys: dict[str, str]) -> Located | None:
    children = declared(dir)
    if not names:
        own = next((p for p in children if isinstance(p, place) and p.own), None)
        return Located(template, own, keys)
    for child in children:
        if isinstance(child, place):
            # Other places have nothing below them.
            if not child.own and child.name == names[0] and (len(names) == 1 or child.node in _WITH_CHILDREN):
                return Located(f"{template}/{child.name}", child, keys, "/".join(names[1:]))
            continue
        rest, here = names, template
        if child.name:
            if child.name != names[0]:
                continue
            rest, here = names[1:], f"{template}/{child.name}"
        found = _below(child, here, rest, keys)
        if found is not None:
            return found
    # Declared children come first: only other names are children of the value.
    own = next((p for p in children if isinstance(p, place) and p.own and p.node in _WITH_CHILDREN), None)
    return Located(template, own, keys, "/".join(names)) if own is not None else None


_WITH_CHILDREN = ("sharded", "lock", "sequence", "ephemeral sequence", "keyed", "ephemeral keyed", "keyed sharded")


def _below(child: below[Any] | each[Any], here: str, rest: list[str], keys: dict[str, str]) -> Located | None:
    if isinstance(child, below):
        return _find(child.dir, here, rest, keys)
    if not rest:
        return Located(here, None, keys)
    # Each key has exactly one escaped form. Nobody would find an entry with another form by its key.
    if escape(unescape(rest[0])) != rest[0]:
        return None
    return _find(child.dir, f"{here}/<{child.key}>", rest[1:], {**keys, child.key: unescape(rest[0])})
