"""Open stores by URL, import each kind only when it is used, and warn soon if a store does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headgate.base.errors import AwayError, UserError
from headgate.cli.terminal.say import say
from headgate.store.registry import MEMORY, SQLITE, connect
from headgate.store.types import At, Backend, Change, Entry, Lease, Op, StoreError, Unavailable

__all__ = ["MEMORY", "SQLITE", "StoreAway", "open_to_read", "open_url", "user_error"]

T = TypeVar("T")

log = logging.getLogger("headgate")

SILENCE_S = 1.5
"""Seconds without an answer after which to warn."""


class StoreAway(AwayError):
    """Report that no server answers now; a later attempt may succeed."""


def user_error(error: StoreError) -> UserError:
    """Convert an error of a store to a UserError: to `StoreAway` if no server answers."""
    return StoreAway(str(error)) if isinstance(error, Unavailable) else UserError(str(error))


async def open_url(url: str) -> Backend:
    """Open a store to read and write. Raise UserError, or StoreAway if no server answers."""
    try:
        return await connect(url)
    except StoreError as error:
        raise user_error(error) from error


async def open_to_read(url: str) -> Backend:
    """Open a store for reading while another process writes it; a path names an SQLite file. Raise UserError."""
    # SQLite's only writer holds the lock of the file; SqliteReader works without it.
    if "://" in url and not url.startswith(SQLITE):
        return await open_url(url)
    try:
        from headgate.store.sqlite import SqliteReader

        return SqliteReader(url.removeprefix(SQLITE))
    except StoreError as error:
        raise UserError(str(error)) from error


def shown(url: str) -> str:
    """Return the URL of a store without credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def open_with_warnings(url: str) -> Backend:
    """Open a store like `open_url`, and warn whenever it does not answer, now and later. Raise UserError."""
    with _noticed(lambda: _say(url)):
        return SilenceWarningBackend(await open_url(url), shown(url))


def _say(url: str) -> None:
    say(
        f"The store {shown(url)} does not answer; still trying. Is it running, and can this machine reach it?",
        err=True,
    )


@contextmanager
def _noticed(say: Callable[[], None]) -> Any:  # the type of contextlib
    """Call `say` once if the body takes longer than SILENCE_S."""
    timer = asyncio.get_running_loop().call_later(SILENCE_S, say)
    try:
        yield
    finally:
        timer.cancel()


class SilenceWarningBackend:
    """Wrap a `Backend`, and log once when it stops answering, and once when it answers again."""

    def __init__(self, inner: Backend, name: str) -> None:
        self._inner, self._name = inner, name
        self._silent = False

    def __getattr__(self, name: str) -> Any:  # further methods of the backend
        return getattr(self._inner, name)

    def _say(self) -> None:
        if not self._silent:
            self._silent = True
            log.warning("the store %s has not answered for %.1f s; still waiting", self._name, SILENCE_S)

    async def _awaited(self, work: Coroutine[Any, Any, T]) -> T:
        with _noticed(self._say):
            answer = await work
        # A failed call raises above and does not get here: an error does not count as an answer.
        if self._silent:
            self._silent = False
            log.warning("the store %s answers again", self._name)
        return answer

    async def get(self, path: str) -> Entry | None:
        return await self._awaited(self._inner.get(path))

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._awaited(self._inner.list(prefix))

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self._awaited(self._inner.commit(checks, ops))

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        # Do not time a watch: it is silent while nothing changes.
        return self._inner.watch(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        return await self._awaited(self._inner.grant(ttl_s))

    async def keep_alive(self, lease: Lease) -> None:
        await self._awaited(self._inner.keep_alive(lease))

    async def revoke(self, lease: Lease) -> None:
        await self._awaited(self._inner.revoke(lease))

    async def close(self) -> None:
        await self._inner.close()
