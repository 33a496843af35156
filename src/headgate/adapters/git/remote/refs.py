"""Read the refs that a repository has now.  One on this machine is read in place, others are asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from headgate.adapters.git.command import GitLimits, RemoteError, git
from headgate.adapters.git.remote import reffiles
from headgate.adapters.git.remote.reffiles import Listing, NotFiles

T = TypeVar("T")
HEADS, _HEAD = "refs/heads/", "HEAD"
RENEW_MIN_S = 60.0
"""Shortest interval between two renewals of the credentials for a server that refuses them."""
_NOT_LET_IN = re.compile(r"authentication failed|could not read (username|password)|returned error: 401", re.IGNORECASE)
LISTING_LIMITS = GitLimits(timeout_s=120.0, out_max_bytes=128 * 2**20)


class Remote:
    """Read a repository at a URL or, if that begins with a slash, in a directory."""

    def __init__(
        self,
        url: str,
        talks: asyncio.Semaphore | None = None,
        access: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
        forget: Callable[[], object] | None = None,
    ) -> None:
        """Make a remote. `talks` limits concurrent calls to servers of this connection. `access` returns git's settings
        with credentials for each command, which may be valid only for a while; it raises RemoteError. `forget` discards
        credentials that the server refuses."""
        self.url, self._access, self._forget = url, access, forget
        self._shut_s = 0.0
        """Time, by the loop's clock, until which credentials are not renewed again, since the server refused the
        renewed ones."""
        self._talks = talks or asyncio.Semaphore(1)
        self._heads_lock = asyncio.Lock()
        self._heads: dict[str, str] = {}
        self._last_request = self._last_answered = 0
        """Number of the last request for the heads, and of the last request that the present heads answer."""

    async def refs(self, *names: str) -> dict[str, str]:
        """Map refs to commits (annotated tags to the tag object) as they are now: all refs, those named, or those
        below a name that ends in a slash. Raise RemoteError."""
        return (await self.listing(*names)).refs

    async def listing(self, *names: str) -> Listing:
        """Return the same, with the refs whose commits are unknown. Raises RemoteError."""
        found = await self._in_place(lambda: reffiles.listed(self.url, names))
        return found if found is not None else await self.listing_by_git(*names)

    async def listing_by_git(self, *names: str) -> Listing:
        """Return the same, always by running git. Raises RemoteError."""
        patterns = (f"{name}*" if name.endswith("/") else name for name in names)
        _, out = await self.talk("ls-remote", "--", self.url, *patterns, limits=LISTING_LIMITS)
        return _listing(out, names)

    async def heads(self) -> dict[str, str]:
        """Map branch refs to commits, as they were at some moment since the call. Calls that arrive while another is
        running share one later answer. Raise RemoteError."""
        self._last_request += 1
        request = self._last_request
        async with self._heads_lock:
            if self._last_answered < request:
                # Requests that come while git runs are not answered by it: it may have read before they were made.
                all_so_far = self._last_request
                self._heads = await self.refs(HEADS)
                self._last_answered = all_so_far
            return dict(self._heads)

    async def default_branch(self) -> str:
        """Return the branch that HEAD names, or an empty string. Raise RemoteError."""
        found = await self._in_place(lambda: reffiles.head(self.url))
        if found is not None:
            return found.removeprefix(HEADS)
        _, out = await self.talk("ls-remote", "--symref", "--", self.url, _HEAD, limits=LISTING_LIMITS)
        first = out.split("\n", 1)[0]
        return first.split()[1].removeprefix(HEADS) if first.startswith("ref:") else ""

    async def talk(self, *args: str, at: Path | None = None, stdin: str = "", limits: GitLimits) -> tuple[int, str]:
        """Return git's output of a command that contacts the server. Raises RemoteError."""
        async with self._talks:
            # After the place is taken: credentials may be short-lived, and waiting for a place may take minutes.
            config = await self._access() if self._access is not None else {}
            try:
                return await git(*args, at=at, stdin=stdin, remote=True, limits=limits, config=config)
            except RemoteError as error:
                fresh = await self._let_in(config) if _NOT_LET_IN.search(error.message) else config
                if fresh == config:
                    raise
            try:
                return await git(*args, at=at, stdin=stdin, remote=True, limits=limits, config=fresh)
            except RemoteError as error:
                if _NOT_LET_IN.search(error.message):
                    # Renewed credentials were refused as well: a revoked
                    # account must not make each command renew them again.
                    self._shut_s = asyncio.get_running_loop().time() + RENEW_MIN_S
                raise

    async def _let_in(self, refused: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings for another attempt; the same ones if there are no better ones."""
        if self._access is None or self._forget is None:
            return refused
        fresh = await self._access()
        if fresh == refused and asyncio.get_running_loop().time() >= self._shut_s:  # no other caller has renewed them
            self._forget()
            fresh = await self._access()
        return fresh

    async def _in_place(self, read: Callable[[], T]) -> T | None:
        """Read in place, or return None if git itself must run, which handles the case or reports the error."""
        if not self.url.startswith("/"):
            return None
        try:
            return await asyncio.to_thread(read)
        except NotFiles:
            return None
        except OSError as error:
            raise RemoteError(("ls-remote",), 1, f"its refs cannot be read: {error}") from error


def _listing(out: str, names: Sequence[str]) -> Listing:
    """Parse the output of ls-remote. A name that is not UTF-8 is shown with marks."""
    found = Listing({}, {})
    below = tuple(name for name in names if name.endswith("/"))
    for oid, tab, ref in (line.partition("\t") for line in out.split("\n")):
        if not tab or ref == _HEAD or ref.endswith("^{}"):
            continue
        # ls-remote matches the end of a name: `refs/heads/x` also finds `refs/for/refs/heads/x`.
        if names and ref not in names and not ref.startswith(below):
            continue
        if "\ufffd" in ref:
            found.unreadable[ref] = "its name is not UTF-8"
        else:
            found.refs[ref] = oid
    return found
