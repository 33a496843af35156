"""Remove logs of old builds: those beyond an age limit, and the oldest ones if all logs together are too large."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.adapters.logs.manifests import Manifest, build_of, manifest_key, parsed, written
from headgate.ports.logstore import LogStore, NotStored

DAY_MS = 86_400_000
OURS = ("job-output.", "zuul-manifest.json", "zuul-info/")
"""Prefixes of the paths of logs; all other files are artifacts."""
DELETED_AT_ONCE = 1_000
Drop = Callable[[str], Awaitable[None]]
YOUNG_MS = 3_600_000
"""Age below which nothing of a build is removed, because its upload may still be in progress."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limit which logs stay stored; 0 means no limit."""

    days: float = 0
    artifacts_days: float = 0
    """Age limit of artifacts: files that jobs leave besides their logs."""
    size_max_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.days or self.artifacts_days or self.size_max_bytes)

    @property
    def least_ms(self) -> int:
        """Return the age up to which no file of a build is removed because of its age; 0 if there is no age limit."""
        return int(min(filter(None, (self.days, self.artifacts_days)), default=0) * DAY_MS)


@dataclass(slots=True)
class StoredBuild:
    """Describe what the store contains of one build."""

    put_ms: int = 0
    """Time of the last upload of a file."""
    recorded_ms: int = 0
    """Time of the upload of its record."""
    keys: list[str] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    """Those of `keys` that are artifacts."""
    size_bytes: int = 0
    artifacts_bytes: int = 0
    recorded: bool = False
    """Whether the store has its record, or a part of its output."""

    @property
    def at_ms(self) -> int:
        return self.put_ms or self.recorded_ms


@dataclass(slots=True)
class Pruned:
    """Count the logs that were removed, or that would be."""

    builds: list[str] = field(default_factory=list)
    """Ids of builds, oldest first."""
    files: int = 0
    """Number of removed artifacts whose builds' logs stay."""
    size_bytes: int = 0

    def __str__(self) -> str:
        return f"the logs of {len(self.builds)} builds and {self.files} other artifacts, {self.size_bytes:,} bytes"


def chosen(
    held: Mapping[str, StoredBuild], policy: RetentionPolicy, now_ms: int, running: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Return the builds to remove, oldest first, and those that only lose their artifacts."""
    # A recent record also protects a build: it may be the start of an upload or of a removal.
    old = ((one.at_ms, build) for build, one in held.items() if now_ms - max(one.at_ms, one.recorded_ms) > YOUNG_MS)
    ended = sorted((at_ms, build) for at_ms, build in old if not running(build))
    # The total includes builds that cannot be removed now, so older ones are removed in their stead.
    total = sum(one.size_bytes for one in held.values())
    gone, lesser = list[str](), list[str]()
    for at_ms, build in ended:
        one, age_days = held[build], (now_ms - at_ms) / DAY_MS
        if (policy.days and age_days > policy.days) or (policy.size_max_bytes and total > policy.size_max_bytes):
            gone.append(build)
            total -= one.size_bytes
        elif one.artifacts and policy.artifacts_days and age_days > policy.artifacts_days:
            lesser.append(build)
            total -= one.artifacts_bytes
    return gone, lesser


async def held_in(store: LogStore, *, recorded: bool = True) -> dict[str, StoredBuild]:
    """Return the stored builds. `recorded`: skip builds without a record or a part of the output, because in this store
    their files belong to others. Raise LogStoreError."""
    found = dict[str, StoredBuild]()
    async for one in store.keys():
        build, path = build_of(one.key)
        if not build:
            continue
        known = found.setdefault(build, StoredBuild())
        known.keys.append(one.key)
        known.recorded |= not path
        known.size_bytes += one.size_bytes
        # The record is separate, because the removal of artifacts writes it again and must not make the build younger.
        if one.key == manifest_key(build):
            known.recorded_ms = one.changed_ms
        else:
            known.put_ms = max(known.put_ms, one.changed_ms)
        if path and not path.startswith(OURS):
            known.artifacts.append(one.key)
            known.artifacts_bytes += one.size_bytes
    return {build: one for build, one in found.items() if one.recorded or not recorded}


async def prune(
    store: LogStore,
    policy: RetentionPolicy,
    now_ms: int,
    running: Callable[[str], bool],
    *,
    dry: bool = False,
    drop: Drop | None = None,
) -> Pruned:
    """Remove old logs, and return a summary; `dry`: only list them. `drop`: function that removes all files of a build,
    for stores with another structure. After an interruption, the next call continues. Raise LogStoreError."""
    held, done = await held_in(store, recorded=drop is None), Pruned()
    gone, lesser = chosen(held, policy, now_ms, running)
    for build in gone:
        if not dry and drop is not None:
            await drop(build)
        elif not dry:
            await _remove(store, build, held[build].keys)
        done.builds.append(build)
        done.size_bytes += held[build].size_bytes
    for build in lesser:
        one = held[build]
        if not dry:
            # In this order, no page lists a file that no longer exists. After a crash in between, the next call deletes
            # the files by their keys.
            await _unlist(store, build, one.artifacts, policy.artifacts_days)
            await _delete(store, one.artifacts)
        done.files += len(one.artifacts)
        done.size_bytes += one.artifacts_bytes
    return done


async def _remove(store: LogStore, build: str, keys: Sequence[str]) -> None:
    """Remove all files of a build, and its record last; meanwhile, the record shows that the build is incomplete."""
    record = manifest_key(build)
    # After a crash from here on, the next call finds the build by this record, and readers see that it is incomplete.
    await _put(store, Manifest(build, 0))
    await _delete(store, [key for key in keys if key != record])
    await store.delete([record])


async def _delete(store: LogStore, keys: Sequence[str]) -> None:
    for at in range(0, len(keys), DELETED_AT_ONCE):
        await store.delete(keys[at : at + DELETED_AT_ONCE])


async def _unlist(store: LogStore, build: str, artifacts: Iterable[str], days: float) -> None:
    """Remove the names of files from the record of a build, before the files are removed."""
    try:
        found = parsed(b"".join([piece async for piece in store.read(manifest_key(build))]))
    except (NotStored, ValueError):
        return
    paths = {build_of(key)[1] for key in artifacts}
    files = tuple(file for file in found.files if file.path not in paths)
    note = f"{len(found.files) - len(files)} artifacts were removed after {days:g} days"
    if len(files) < len(found.files):
        await _put(store, replace(found, files=files, lost=(*found.lost, note)))


async def _put(store: LogStore, manifest: Manifest) -> None:
    async def content() -> AsyncGenerator[bytes, None]:
        yield written(manifest)

    await store.put(manifest_key(manifest.build), content(), kind="application/json")
