"""Open a store by its URL. Each kind is loaded only when it is used."""

from __future__ import annotations

from headgate.base.errors import AwayError, UserError
from headgate.store.registry import MEMORY, SQLITE, connect
from headgate.store.types import Backend, StoreError, Unavailable

__all__ = ["MEMORY", "SQLITE", "StoreAway", "open_to_read", "open_url", "user_error"]


class StoreAway(AwayError):
    """Report that no server answers now; one may later."""


def user_error(error: StoreError) -> UserError:
    return StoreAway(str(error)) if isinstance(error, Unavailable) else UserError(str(error))


async def open_url(url: str) -> Backend:
    """Open a store to read and write. Raise UserError, or StoreAway if no server answers."""
    try:
        return await connect(url)
    except StoreError as error:
        raise user_error(error) from error


async def open_to_read(url: str) -> Backend:
    """Open a store for reading while another process writes it; a path names an SQLite file. Raise UserError."""
    # SQLite has one writer, which holds the lock of the file; a reader opens it beside that process.
    if "://" in url and not url.startswith(SQLITE):
        return await open_url(url)
    try:
        from headgate.store.sqlite import SqliteReader

        return SqliteReader(url.removeprefix(SQLITE))
    except StoreError as error:
        raise UserError(str(error)) from error
