"""A database for messages by its URL; each kind is loaded only where it is used."""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.messages.database import Open, SqliteDatabase, shown
from headgate.base.errors import UserError
from headgate.base.extras import needing


def opener(url: str) -> Open:
    """Return a function that opens `sqlite:///FILE` or `postgresql://…`. Raise UserError, MissingPackage."""
    if url.startswith("sqlite:///"):
        return lambda: SqliteDatabase(Path(url.removeprefix("sqlite:///")))
    if url.startswith(("postgresql://", "postgres://")):
        with needing("PostgreSQL", "postgresql"):
            from headgate.adapters.messages.postgres import PostgresDatabase
        return lambda: PostgresDatabase(url)
    raise UserError(
        f"{shown(url)!r} is not a database for messages; it is sqlite:///FILE or postgresql://USER@HOST/NAME"
    )
