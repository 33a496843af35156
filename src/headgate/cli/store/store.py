"""Implement `headgate store` and `headgate map`: show, check, copy and delete the tree of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from headgate.adapters.logs.transfer import Record, put_back, records
from headgate.adapters.sql.history import HistoryError
from headgate.adapters.sql.transfer import exists, fill, rows
from headgate.base.errors import UserError
from headgate.base.files import file_opener
from headgate.base.private import private_replacement
from headgate.cli.groups import CommandGroup
from headgate.cli.jobs import log_store
from headgate.cli.settings import Settings, find, read
from headgate.cli.store.urls import MEMORY, open_to_read, open_url, user_error
from headgate.cli.terminal.say import say
from headgate.map.check import check, show_tree
from headgate.map.keys import KEYS_ROOT
from headgate.map.places import ROOT
from headgate.map.trees import StoreTree, page, trees
from headgate.map.trees import find as find_place
from headgate.ports.logstore import LogStore, LogStoreError
from headgate.services.reset import StoreInUse, reset_store
from headgate.store.archive import check_empty, history_rows, lines_of, log_records, parsed, restore, written
from headgate.store.model import inside
from headgate.store.types import Entry, StoreError

T = TypeVar("T")

_config = click.option("--config", metavar="FILE", help="The settings file.")
_store = click.option("--store", metavar="URL", default="", help="URL of a store, instead of the one in the settings.")
_map_store = click.option(
    "--store",
    metavar="FILE|URL",
    default="",
    help="File or URL of the store. Default: from the settings. Works while Headgate runs.",
)
_root = click.option("--root", default=ROOT, show_default=True, help="Path of the gate's tree in the store.")


@click.group(cls=CommandGroup)
def command() -> None:
    """Export, import or delete all of Headgate's state.

    To move to another kind of store: stop Headgate, export, change `[store] url`, import, and start Headgate.
    """


@command.command("export")
@_config
@_store
@click.option("--no-logs", is_flag=True, help="Omit the records of logs, for example if their store is unreachable.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def export(config: str | None, store: str, no_logs: bool, file: Path) -> None:
    """Write the content of the store, the history and the records of logs to FILE.  This works while Headgate runs.
    Log files are not included; the records tell which logs are stored at `[logs] url`."""
    url, settings = _url(config, store), _settings(config, store)
    history, logs = settings.dburi if settings else "", log_store(settings) if settings and not no_logs else None
    entries = _run(_entries_of(url, ""))
    if file.exists():
        raise UserError(f"{file} exists; choose another name")
    # Rename the file only when it is complete, so that nobody takes an interrupted export for a complete one.
    try:
        # Only the owner may read the file: it contains the projects' private keys, although encrypted.
        with (
            private_replacement(file) as out,
            closing(rows(history)) if history and exists(history) else nullcontext(()) as history_lines,
            closing(_streamed(records(logs))) if logs else nullcontext(()) as log_lines,
        ):
            out.writelines(written(entries, url.rpartition("@")[2], history_lines, log_lines))
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error
    except HistoryError as error:
        raise UserError(str(error)) from error
    except LogStoreError as error:
        raise UserError(f"the records of logs cannot be read: {error}; `--no-logs` leaves them out") from error
    say(f"{file}: {sum(entry.lease is None for entry in entries)} entries")


@command.command("import")
@_config
@_store
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def import_(config: str | None, store: str, file: Path) -> None:
    """Import FILE, which `headgate store export` wrote, into an empty store, its history into an empty database, and
    its records of logs in addition to those at `[logs] url`."""
    url, settings = _url(config, store), _settings(config, store)
    logs = log_store(settings) if settings else None
    try:
        with open(file, "rb", opener=file_opener) as lines:
            if not lines.seekable():
                raise UserError(
                    f"{file}: cannot be read: this is a pipe, and an export is read twice; name a regular file"
                )
            # Parse all of it before opening the store, so that a damaged file imports nothing.
            found = parsed(lines_of(lines), str(file))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    except StoreError as error:
        raise UserError(str(error)) from error

    async def body(lines: BinaryIO) -> tuple[int, int]:
        backend = await open_url(url)
        try:
            await check_empty(backend)
            # Before the entries: if it fails, the same command can be repeated, because the store is still empty.
            count = await _with_logs(logs, log_records(lines_of(lines))) if logs else 0
            return count, await restore(backend, found, _numbered)
        finally:
            await backend.close()

    with open(file, "rb", opener=file_opener) as lines:
        log_count, count = _run(body(lines))
    say(f"{count} entries imported")
    if settings and settings.dburi:
        say(_filled(settings.dburi, file))
    if log_count:
        say(f"{log_count} records of logs imported")


@command.command()
@_config
@_store
@click.option("--keys", is_flag=True, help="Also delete the keys of projects. Secrets encrypted with them are lost.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reset(config: str | None, store: str, keys: bool, yes: bool) -> None:
    """Delete Headgate's state from the store: queues, requests, caches.

    Stop Headgate first; components that are registered as running are refused, and components that start meanwhile
    join when the store is empty.  An interrupted reset keeps them out until it is repeated.

    Headgate finds open changes again in git. The history stays, as do entries of other programs, and those of another
    Headgate whose root is inside this one's."""
    url = _url(config, store)
    exception = "" if keys else ", except the keys of projects"
    if not yes:
        click.confirm(f"Delete everything from {url.rpartition('@')[2]}{exception}?", abort=True)

    def ours(entry: Entry) -> bool:
        return any(inside(entry.path, tree.root) for tree in trees())

    def deleted(entry: Entry) -> bool:
        # Keep the keys by default: without them, no encrypted secret in any repository can ever be decrypted again.
        return ours(entry) and (keys or not inside(entry.path, KEYS_ROOT))

    async def body() -> int:
        backend = await open_url(url)
        try:
            if others := sorted(entry.path for entry in await backend.list("") if not ours(entry)):
                say(f"not deleted, because not Headgate's: {others[0]} and {len(others) - 1} more")
            return await reset_store(backend, deleted)
        except StoreInUse as used:
            raise UserError(str(used)) from used
        finally:
            await backend.close()

    say(f"{_run(body())} entries deleted")


def _filled(history: str, file: Path) -> str:
    """Import the history from the file into the database, and return a message. Raise UserError."""
    try:
        with open(file, "rb", opener=file_opener) as lines:
            history_lines = history_rows(lines_of(lines))
            # Read the first row before opening the database: a file without history must not touch it.
            first = next(history_lines, None)
            if first is None:
                return "the file contains no history"
            count = fill(history, chain([first], history_lines))
    except HistoryError as error:
        raise UserError(f"the entries were imported, but not the history: {error}") from error
    return "history not imported: the database already has one" if count is None else f"{count} history rows imported"


async def _with_logs(logs: LogStore, found: Iterable[Record]) -> int:
    """Put the records into the log store, and return the number of those that were missing there. Raise UserError."""
    try:
        return await put_back(logs, found)
    except LogStoreError as error:
        raise UserError(f"records of logs cannot be restored: {error}; nothing else was imported") from error


def _streamed(found: AsyncGenerator[Record, None]) -> Generator[Record, None, None]:
    """Yield the items of an asynchronous generator, each only when it is needed."""

    async def following() -> Record | None:
        return await anext(found, None)

    with asyncio.Runner() as runner:
        try:
            while (record := runner.run(following())) is not None:
                yield record
        finally:
            runner.run(found.aclose())


def _settings(config: str | None, store: str) -> Settings | None:
    """Return the settings; None if a store was named and there are none."""
    try:
        path = find(config)
    except UserError:
        # `--store` must also work on a machine without settings; there are no history and no logs then.
        if store and not config:
            return None
        raise
    return read(path)


def _numbered(path: str) -> bool:
    """Return whether the store numbers the entry, according to the map."""
    found = find_place(trees(), path)
    return found is not None and found.place is not None and found.place.node == "sequence" and bool(found.rest)


def _url(config: str | None, store: str) -> str:
    url = store or read(find(config)).store_url
    if url == MEMORY:
        raise UserError("[store] url is memory:, which no other process can open")
    return url


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine. Raise UserError."""
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise user_error(error) from error


@click.group(name="map", invoke_without_command=True, cls=CommandGroup)
@click.pass_context
def map_commands(context: click.Context) -> None:
    """Print the reference page about all places in the store."""
    if context.invoked_subcommand is None:
        say(page(), nl=False)


@map_commands.command()
@_map_store
@_root
@click.argument("prefix", default="")
def tree(store: str, root: str, prefix: str) -> None:
    """Show the entries at and below PREFIX, with their contents."""
    lines = list(show_tree(_entries(store, trees(root)), trees(root), prefix))
    if not lines:
        raise UserError(f"the store has no entries at or below {prefix or root}; `headgate map` lists the places")
    for line in lines:
        say(line)


@map_commands.command("check")
@_map_store
@_root
@click.option("--all", "every", is_flag=True, help="Also list places of the map that have no entry.")
@click.pass_context
def check_(context: click.Context, store: str, root: str, every: bool) -> None:
    """Report entries that are not on the map or cannot be decoded. The exit status is 1 if there are any."""
    findings = check(_entries(store, trees(root)), trees(root))
    say(findings.text(every=every))
    context.exit(0 if findings.good else 1)


def _entries(store: str, among: Sequence[StoreTree]) -> Sequence[Entry]:
    """Return the entries of these trees; those of one tree are a consistent snapshot."""
    try:
        return asyncio.run(_entries_of(store or read(find(None)).store_url, *(tree.root for tree in among)))
    except StoreError as error:
        raise user_error(error) from error


async def _entries_of(url: str, *prefixes: str) -> Sequence[Entry]:
    """Return the entries below each prefix, in the order of the prefixes."""
    reader = await open_to_read(url)
    try:
        return [entry for prefix in prefixes for entry in await reader.list(prefix)]
    finally:
        await reader.close()
