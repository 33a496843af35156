"""A reporter of a new kind: each report is a line of a file."""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.base.errors import UserError
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import Reporter, ReporterAway


class Notebook:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def tell(self, outgoing: OutboxMessage) -> None:
        report, heading = outgoing.report, outgoing.options.get("heading", "")
        line = f"{outgoing.key} {heading}: {report.change} of {report.project} {report.result}\n"
        try:
            with self._path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise ReporterAway(f"{self._path.name}: {error.strerror}") from error


async def connect(given: ReporterOptions) -> Reporter:
    if not given.options["file"].endswith(".txt"):
        raise UserError("file: a name that ends in .txt")
    return Notebook(given.directory / given.options["file"])
