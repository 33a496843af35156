"""Provide a reporter of a new kind: each report is a line of a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.adapters.reporters.wordings import title
from headgate.base.errors import UserError
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import Reporter, ReporterAway


class Notebook:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def tell(self, outgoing: OutboxMessage) -> None:
        line = f"{outgoing.key} {title(outgoing.report, outgoing.options.get('heading', ''))}\n"
        try:
            await asyncio.to_thread(self._append, line)
        except OSError as error:
            raise ReporterAway(f"{self._path.name}: {error.strerror}") from error

    def _append(self, line: str) -> None:
        if not self._path.exists() or line not in self._path.read_text().splitlines(keepends=True):
            with self._path.open("a") as file:
                file.write(line)


async def connect(given: ReporterOptions) -> Reporter:
    if not given.options["file"].endswith(".txt"):
        raise UserError("file: a name that ends in .txt")
    return Notebook(given.directory / given.options["file"])
