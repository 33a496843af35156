"""Many objects at once: import and export."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import IO

import click

from headgate.base.errors import UserError
from headgate.cli.inventory import rows
from headgate.cli.inventory.client import InventoryClient, ServiceAddress, connected
from headgate.cli.inventory.objects import filtered, search, wanted
from headgate.cli.inventory.rows import Row
from headgate.cli.terminal.say import say
from headgate.inventory.names import normal
from headgate.inventory.wire import inventory_pb2 as pb

STEPS_MAX = 500
"""Limit on the steps of one request; a request has at most 4 MB."""
STEPS_SIZE_MAX_BYTES = 2_000_000
NAMES_MAX = 100
"""Objects that are looked up at a time."""
SHOWN_MAX = 20
TAKEN = "ALREADY_EXISTS"

_format = click.option(
    "--format", type=click.Choice(rows.FORMATS), default=None, help="Default: as the name of the file ends."
)


@click.command("import")
@click.option("--file", "-f", default="-", metavar="FILE", help="Default: standard input.")
@_format
@click.option("--type", "-t", default="", metavar="TYPE", help="The type for rows that do not name one.")
@click.option("--update", is_flag=True, help="Change existing objects that differ; otherwise, they are rejected.")
@connected
def import_(address: ServiceAddress, file: str, format: str | None, type: str, update: bool) -> None:
    """Create objects from CSV, JSON (one per line, or an array) or YAML; existing objects stay as they are.

    Rows are imported in parts.  Rejected rows are listed, and all others are imported; importing the file again
    imports the rest.  The exit status is 1 if a row was rejected.
    """
    format = rows.format_of(file, format or "")
    done = _Import(address.open(), update=update)
    try:
        with _opened(file, "r") as source:
            try:
                for part in _parts(rows.read(source, "standard input" if file == "-" else file, format, type)):
                    done.take(part)
            finally:
                if not address.quiet:
                    say(done.text())
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    sys.exit(1 if done.counts["refused"] else 0)


@click.command("export")
@filtered
@_format
@click.option("--output", "-o", "file", default="-", metavar="FILE", help="Default: standard output.")
@click.option("--no-uuid", is_flag=True, help="Omit uuids, to create similar objects.")
@connected
def export(address: ServiceAddress, filters: tuple[str, ...], format: str | None, file: str, no_uuid: bool) -> None:
    """Write objects as CSV, JSON (one per line) or YAML, as `import` reads them."""
    format = rows.format_of(file, format or "")
    found = sorted(search(address.open(), wanted(filters, "")), key=lambda one: (one.partition, one.type, one.name))
    try:
        with _opened(file, "w") as target:
            rows.write(target, found, format, uuids=not no_uuid)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error


def _opened(file: str, mode: str) -> AbstractContextManager[IO[str]]:
    """Open the file without translating ends of lines: lines may end within a value."""
    if file == "-":
        return nullcontext(sys.stdin if mode == "r" else sys.stdout)
    # The csv module needs untranslated ends of lines: a quoted value may contain one.
    return open(file, mode, encoding="utf-8", newline="")


def _parts(found: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield as many steps together as one request can hold."""
    part: list[Row] = []
    size_bytes = 0
    for row in found:
        more = row[1].ByteSize()
        if part and (len(part) >= STEPS_MAX or size_bytes + more > STEPS_SIZE_MAX_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(row)
        size_bytes += more
    if part:
        yield part


class _Import:
    """Import one file, and count the outcomes of its rows."""

    def __init__(self, client: InventoryClient, *, update: bool) -> None:
        self._client, self._update = client, update
        self.counts: Counter[str] = Counter()

    def take(self, part: Sequence[Row]) -> None:
        taken = self._apply(part, [pb.Step(create=one) for _, one in part], "created")
        if taken:
            self._compare([part[number] for number in taken], taken)

    def text(self) -> str:
        return ", ".join(f"{self.counts[what]} {what}" for what in ("created", "updated", "unchanged", "refused"))

    def _apply(self, part: Sequence[Row], steps: Sequence[pb.Step], what: str) -> dict[int, str]:
        """Perform the steps; return those whose objects exist already, and the server's answers."""
        # In parts, one rejected row does not undo the others of its request.
        answer = self._client.call("Apply", steps=steps, in_parts=True)
        taken = {}
        for failure in answer.failures:
            if failure.status == TAKEN and what == "created":
                taken[failure.step] = failure.detail
            else:
                self._refused(part[failure.step], failure.detail)
        self.counts[what] += len(steps) - len(answer.failures)
        return taken

    def _compare(self, part: Sequence[Row], why: dict[int, str]) -> None:
        """Compare rows with objects that exist already: leave equal ones alone, and update or reject the others."""
        existing: dict[tuple[str, str], list[pb.Object]] = {}
        for old in self._existing([one for _, one in part]):
            existing.setdefault((old.type, old.name), []).append(old)
        changed: list[Row] = []
        patches: list[pb.Step] = []
        # Both come from one dictionary, so they are in the same order.
        for (where, one), detail in zip(part, why.values(), strict=True):
            same = existing.get((one.type, one.name), [])
            same = [old for old in same if one.project in ("", old.project) and normal(one.uuid) in ("", old.uuid)]
            # Names are unique in a project or a partition only: where several objects match, changing one would be a
            # guess.
            if len(same) != 1:
                self._refused((where, one), detail)
                continue
            old = same[0]
            if one.properties == old.properties and sorted(one.tags) == sorted(old.tags):
                self.counts["unchanged"] += 1
            elif self._update:
                changed.append((where, one))
                patches.append(pb.Step(update=_patch(old, one)))
            else:
                self._refused((where, one), f"{one.type} {one.name} is there and differs; --update changes it")
        if patches:
            self._apply(changed, patches, "updated")

    def _existing(self, named: Sequence[pb.Object]) -> list[pb.Object]:
        """Return the existing objects with the same types and names."""
        found: list[pb.Object] = []
        left = iter(named)
        while some := list(islice(left, NAMES_MAX)):
            filters = [pb.Filter(types=[one.type], name=one.name, project=one.project) for one in some]
            for filter, one in zip(filters, some, strict=True):
                filter.partitions.extend([one.partition] if one.partition else [])
            found += search(self._client, filters)
        return found

    def _refused(self, row: Row, why: str) -> None:
        self.counts["refused"] += 1
        if self.counts["refused"] <= SHOWN_MAX:
            say(f"headgate: {row[0]}: {why}", err=True)
        elif self.counts["refused"] == SHOWN_MAX + 1:
            say("headgate: more are refused, and only counted", err=True)


def _patch(old: pb.Object, new: pb.Object) -> pb.Patch:
    """Return the patch that turns the one into the other; the server rejects it if the object changes meanwhile."""
    patch = pb.Patch(uuid=old.uuid, expected_generation=old.generation)
    for key, value in new.properties.items():
        if old.properties.get(key, None) != value:
            patch.set_properties[key] = value
    patch.remove_properties.extend(sorted(key for key in old.properties if key not in new.properties))
    patch.add_tags.extend(sorted(set(new.tags) - set(old.tags)))
    patch.remove_tags.extend(sorted(set(old.tags) - set(new.tags)))
    return patch
