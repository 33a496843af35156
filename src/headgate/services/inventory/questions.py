"""Resolve callers' questions: conditions for objects, the sealed position of a page, a watcher's rights."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import product
from typing import Self

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headgate.inventory import names
from headgate.inventory.filters import Expression, Filter, Sort
from headgate.inventory.journal import JournalKind, ObjectChange
from headgate.inventory.model import Caller, Definition, Object
from headgate.inventory.permissions import hidden, visible
from headgate.map.inventory.places import InventoryMap, PageKey
from headgate.services.inventory.errors import PermissionDenied, Unmet
from headgate.services.inventory.facts import Basis, InventoryFacts
from headgate.services.inventory.index import Condition, IndexQuery, Position
from headgate.services.inventory.journal import JournalCommit
from headgate.services.inventory.search import COMPARED_MAX, FoundObject, ReadTurns
from headgate.store.store import Store
from headgate.store.types import At, Conflict

KEY_SIZE_BYTES, NONCE_SIZE_BYTES = 32, 12
PADDED_BYTES = 256
"""Plain texts are padded to a multiple of this size, because their lengths would reveal something."""
TEXT_SIZE_MAX = 8_000
CONDITIONS_MAX = 200
"""Limit on filters x partitions x types in one search."""
TERMS_MAX = 5_000
"""Limit on the comparisons that one search may need for each object."""
_Rules = dict[tuple[str, str], dict[str, Definition | None]]
"""(partition, type) -> kind -> definition."""


class Seal:
    """Seal and open tokens with a key in the store, which all servers of an inventory share."""

    def __init__(self, store: Store, places: InventoryMap) -> None:
        self._store, self._places = store, places
        self._cipher: AESGCM | None = None

    async def shut(self, plain: bytes) -> str:
        """Return an encrypted string that only `open` can read."""
        # Random nonces of 96 bits are safe for some four billion tokens under one key.
        nonce = secrets.token_bytes(NONCE_SIZE_BYTES)
        # JSON ignores spaces at its end, so the padding needs no mark.
        padded = plain.ljust(-(-len(plain) // PADDED_BYTES) * PADDED_BYTES)
        sealed = nonce + (await self._key()).encrypt(nonce, padded, None)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    async def open(self, text: str) -> bytes:
        """Return the content that `shut` sealed. Raise Invalid for any other string."""
        try:
            # Input from outside is checked for its size before it is decoded.
            if len(text) > TEXT_SIZE_MAX:
                raise ValueError("longer than any")
            padded = text.encode() + b"=" * (-len(text) % 4)
            sealed = base64.b64decode(padded, altchars=b"-_", validate=True)
            nonce, rest = sealed[:NONCE_SIZE_BYTES], sealed[NONCE_SIZE_BYTES:]
            return (await self._key()).decrypt(nonce, rest, None).rstrip(b" ")
        # The same error for all cases, so that callers cannot learn which part was wrong.
        except (ValueError, InvalidTag) as error:
            raise names.Invalid("the page token is invalid; start without one") from error

    async def _key(self) -> AESGCM:
        """Read the key once; the first server that needs it creates it."""
        address = self._places.page_key
        while self._cipher is None:
            entry = await self._store.get(address.path)
            if entry is not None:
                self._cipher = AESGCM(address.decode(entry.value).key)
                break
            made = PageKey(secrets.token_bytes(KEY_SIZE_BYTES))
            try:
                await self._store.commit([At(address.path, None)], [address.put(made)])
            except Conflict:
                continue  # another server was faster
        return self._cipher


class Questions:
    """Resolve the names in callers' questions, and refuse questions that the caller may not ask."""

    def __init__(self, facts: InventoryFacts) -> None:
        self._facts = facts
        self.watch_turns = ReadTurns()
        """Turns of watchers, who do not wait behind searches, nor these behind them."""

    async def filter(self, caller: Caller, expression: Expression) -> Filter:
        """Return the filter with names and patterns resolved, and with the caller's partition and project as defaults.

        Raise PermissionDenied for partitions or projects that are not the caller's, Unmet for a partition or type that
        does not exist.
        """
        partitions = [await self.partition(one, caller) for one in expression.partitions] or [caller.partition]
        # If an administrator's credential names partitions, it makes the caller an administrator only there.
        everywhere = caller.admin and caller.partitions is None
        if foreign := [one for one in partitions if one != caller.partition and not everywhere]:
            raise PermissionDenied(
                f"{caller.user} may search only in the partition of the session, not in {foreign[0]}"
            )
        project = None if expression.every_project else expression.project or caller.project
        if project != caller.project and not caller.admin:
            raise PermissionDenied(f"{caller.user} may search only in project {caller.project}")
        return Filter(
            partitions=tuple(dict.fromkeys(partitions)),
            types=await self._types(expression.types) if expression.types else None,
            project=project,
            uuids=tuple(names.uuid(one) for one in expression.uuids) if expression.uuids else None,
            uuid_prefix=expression.uuid_prefix or None,
            name=expression.name if expression.name or expression.name_prefix else None,
            name_prefix=expression.name_prefix,
            wanted=expression.wanted,
        )

    async def partition(self, named: str, caller: Caller | None = None) -> str:
        """Return the uuid of a partition given by uuid or name.  Raise Unmet, Invalid.

        With a caller, raise PermissionDenied for a partition that is not open to the caller, whether it exists or not.
        """
        names.name(named, "partition")
        basis = Basis(self._facts)
        uuid = names.normal(named) if names.is_uuid(named) else await basis.partition_named(named)
        known = uuid is not None and await basis.partition(uuid) is not None
        # Both cases have the same answer; otherwise anybody could find out which partitions exist.
        if caller is not None and caller.partitions is not None and not (known and caller.may_enter(uuid or "")):
            raise PermissionDenied(
                f"partition {named} is not open to {caller.user}: the credential must name it (claim `partitions` of a "
                "token, L of a certificate), or [inventory] open_partitions must list it"
            )
        if uuid is None or not known:
            raise Unmet(f"there is no partition {named!r}")
        return uuid

    async def query(self, caller: Caller, any: Sequence[Filter]) -> IndexQuery:
        """Return the conditions, one of which must match, and a function that returns the visible part of an object.
        Raise Invalid."""
        given = any or [Filter(partitions=(caller.partition,), project=caller.project)]
        types = {one.code: one.per_project for one in await self._facts.object_types()}
        conditions = [
            Condition(partition, type, types[type], one)
            for one in given
            for partition, type in product(one.partitions or (caller.partition,), one.types or types)
            # A type may have been deleted since the filter was resolved.
            if type in types
        ]
        if len(conditions) > CONDITIONS_MAX:
            raise names.Invalid(
                f"this is {len(conditions)} combinations of filter, partition and type; "
                f"at most {CONDITIONS_MAX} can be searched in one request"
            )
        # All callers share one event loop, so the comparisons of one question are limited.
        if (terms := sum(one.filter.terms for one in conditions)) > TERMS_MAX:
            raise names.Invalid(
                f"this needs about {terms} comparisons for each object, over all filters, partitions and types; "
                f"at most {TERMS_MAX} are allowed in one search"
            )
        rules = await self._rules({(one.partition, one.type) for one in conditions})

        def secret(one: Condition) -> frozenset[str]:
            found = rules.get((one.partition, one.type), {}).values()
            # A property that any kind hides counts as hidden, because all kinds share one index.
            return frozenset().union(*(hidden(definition, caller) for definition in found))

        return IndexQuery(conditions, types, self._shown(caller, rules), secret)

    def _shown(self, caller: Caller, rules: _Rules) -> Callable[[Object], Object]:
        """Return a function that returns the visible part of any object that the conditions cover."""

        def shown(object: Object) -> Object:
            found = rules.get((object.partition, object.type))
            if found is None:
                return object
            return visible(object, found.get(object.kind, found[""]), caller)

        return shown

    async def _rules(self, about: Iterable[tuple[str, str]]) -> _Rules:
        """Return (partition, type) -> kind -> definition; the kind "" represents every kind without its own."""
        basis = Basis(self._facts)
        found = {}
        for partition, type in about:
            kinds = await self._facts.kinds(partition, type)
            found[partition, type] = {kind: await basis.definition(partition, type, kind) for kind in ("", *kinds)}
        return found

    async def _types(self, wanted: Sequence[str]) -> tuple[str, ...]:
        known = [one.code for one in await self._facts.object_types()]
        found = [
            code
            for one in wanted
            for code in known
            if (code.startswith(one[:-1]) if one.endswith("*") else code == one)
        ]
        if not found:
            raise Unmet(f"there is no object type {' or '.join(wanted)}; the types are {', '.join(known)}")
        return tuple(dict.fromkeys(found))


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """Record where a page ended: the revision that all pages show, the used indexes and the last position in them or,
    for orders without an index, the number of returned objects."""

    revision: int
    plan: tuple[int, ...]
    scan: int
    within: str
    returned: int
    search_digest: str
    """Digest of the search: a token is valid only for this search."""
    values: tuple[tuple[str, ...], ...] = ()
    """Values of the plan's conditions; see `SearchPlan.values`."""

    @property
    def after(self) -> Position:
        return self.scan, self.within

    async def text(self, seal: Seal) -> str:
        """Return the encrypted token: it may contain names that the caller must not see."""
        return await seal.shut(msgspec.json.encode(self))

    @classmethod
    async def read(cls, text: str, search_digest: str, seal: Seal) -> Self:
        """Open a token. Raise Invalid for one that was not issued, or that is for another search."""
        token = msgspec.json.decode(await seal.open(text), type=cls)
        # Its position and plan would be wrong for another search, and could reveal objects that this one hides.
        if token.search_digest != search_digest:
            raise names.Invalid("the page token belongs to another search; start without one")
        return token


def digest(caller: Caller, any: Sequence[Filter], sorts: Sequence[Sort]) -> str:
    encoded = msgspec.json.encode((caller.partition, caller.project, any, sorts), order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


def after_marker(found: Sequence[FoundObject], marker: str) -> Sequence[FoundObject]:
    """Return the objects after the one with this uuid, or all without a marker. Raise Invalid if it is not among
    them."""
    if not marker:
        return found
    wanted = names.normal(marker) if names.is_uuid(marker) else marker
    for number, one in enumerate(found):
        if one.object.uuid == wanted:
            return found[number + 1 :]
    raise wrong_marker(marker)


def wrong_marker(marker: str) -> names.Invalid:
    return names.Invalid(f"marker {marker!r} is not the uuid of a matching object")


async def seen(query: IndexQuery, commit: JournalCommit, turns: ReadTurns) -> AsyncIterator[ObjectChange]:
    """Yield the changes of a commit to matching objects. An object that starts to match is shown as created, one that
    stops matching as deleted."""
    # A commit wakes all watchers together, and each may need many comparisons: hence a turn before the first, too.
    cost = 2 * query.terms
    left = 0
    for change in commit.recorded.changes:
        if left < cost:
            await turns.turn()
            left = COMPARED_MAX
        left -= cost
        # Only visible properties are compared, so that a change of matches does not reveal hidden ones.
        old = query.shown(change.old) if change.old and query.matches(change.old) else None
        new = query.shown(change.new) if change.new and query.matches(change.new) else None
        if old is not None and new is not None:
            yield ObjectChange(JournalKind.UPDATED, old, new)
        elif old is not None or new is not None:
            yield ObjectChange(JournalKind.CREATED if old is None else JournalKind.DELETED, old, new)


def changes_facts(commits: Sequence[JournalCommit]) -> bool:
    """Return whether one of the commits changed partitions, types or definitions."""
    return any(commit.facts for commit in commits)
