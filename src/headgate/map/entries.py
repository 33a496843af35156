"""Look up records by their place in a list of entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from headgate.gate.state.model import Build
from headgate.map.places import JobPlace, PipelineDir
from headgate.map.tree import Address, Undecodable, unescape
from headgate.recipes import blob
from headgate.store.types import Entry

R = TypeVar("R")

MISSING = "it is missing, but another record names it"


class Entries:
    """Look up the entries of a listed subtree by place."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.all = list(entries)
        self._by_path = {entry.path: entry for entry in self.all}
        self._builds: dict[str, list[Entry]] = {}
        """Path of the directory of a job's builds -> their entries."""
        for entry in self.all:
            # Indexed by job, as the record of the buildset does not name its builds.
            if (above := entry.path.rpartition("/")[0]).endswith("/build"):
                self._builds.setdefault(above, []).append(entry)

    def get(self, address: Address[R]) -> R | None:
        """Return the record at an address, or None if there is none.  Raise Undecodable."""
        entry = self._by_path.get(address.path)
        return None if entry is None else address.decode(entry.value)

    def blob(self, address: Address[R], *, needed: bool) -> R | None:
        """Return the blob at an address, or None if there is none.  Raise Undecodable if it is damaged, or if a
        `needed` one is missing."""
        entry = self._by_path.get(address.path)
        if entry is None and needed:
            raise Undecodable(address.path, MISSING)
        if entry is None:
            return None
        try:
            return address.decode(blob.assemble(entry, self.all))
        except ValueError as error:
            raise Undecodable(address.path, str(error)) from error

    def build(self, job: JobPlace, name: str) -> Build | None:
        """Return the latest attempt at a job, or None if there is none.  There are several if a writer died before it
        deleted the previous one.  Raise Undecodable, also for a build with a wrong id or job."""
        attempts = list[Build]()
        for entry in self._builds.get(f"{job.path}/build", ()):
            id = unescape(entry.path.rpartition("/")[2])
            build = job.build(id).record.decode(entry.value)
            if (build.id, build.job) != (id, name):
                raise Undecodable(entry.path, f"it belongs to another path: build {build.id} of {build.job}")
            attempts.append(build)
        return max(attempts, key=lambda build: build.attempt, default=None)

    def need(self, address: Address[R]) -> R:
        """Return the record at an address. Raise Undecodable if it is damaged or missing."""
        found = self.get(address)
        if found is None:
            raise Undecodable(address.path, MISSING)
        return found

    def items(self, place: PipelineDir) -> dict[str, list[Entry]]:
        """Return the entries of all items, grouped by the id of the item."""
        prefix, found = f"{place.item('').path.rpartition('/')[0]}/", dict[str, list[Entry]]()
        for entry in self.all:
            if entry.path.startswith(prefix):
                found.setdefault(entry.path[len(prefix) :].partition("/")[0], []).append(entry)
        return {unescape(name): entries for name, entries in found.items()}
