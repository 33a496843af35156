"""Read the current refs of a repository: directly if it is on this machine, otherwise from its server.

A direct read handles each ref on its own: it names a ref that cannot be read, and returns the others.  A library that
walks the directories of refs may stop at the first one that it cannot handle (libgit2 does at a hundred levels), and
return no ref at all.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pygit2

from headgate.adapters.git.command import GitLimits, RemoteError, git
from headgate.base.errors import RepositoryError

SYMBOLIC_MAX = 5
"""Longest chain of refs that name another ref."""
LOOSE_MAX_BYTES = 4_096
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?\s*")
_ALL = ("refs/",)
T = TypeVar("T")
HEADS, _HEAD = "refs/heads/", "HEAD"
RENEW_MIN_S = 60.0
"""Shortest interval between two renewals of the credentials for a server that refuses them."""
_NOT_LET_IN = re.compile(r"authentication failed|could not read (username|password)|returned error: 401", re.IGNORECASE)
LISTING_LIMITS = GitLimits(timeout_s=120.0, out_max_bytes=128 * 2**20)


class Listing(NamedTuple):
    """Hold the refs of a repository."""

    refs: dict[str, str]
    """Ref -> its commit, or for an annotated tag the tag object."""
    unreadable: dict[str, str]
    """Name of the ref, printable -> why its commit is unknown."""


class NotFiles(RepositoryError):
    """Report that this repository does not store its refs in files, or that it is not a repository."""


def listed(url: str, names: Sequence[str]) -> Listing:
    """Return the refs with these names, and those below a name that ends with a slash; without names, return all refs.
    Raise NotFiles, OSError."""
    at = _directory(url)
    names = names or _ALL
    below = tuple(name for name in names if name.endswith("/"))
    exact = [name for name in names if not name.endswith("/")]
    # Read loose refs first: one that is packed in the meantime is then found among the packed ones.
    loose = dict(_below(at, below))
    loose |= {name: raw for name in exact if (raw := _loose(at / name)) is not None}
    packed = _packed(at)
    wanted = {ref: oid for ref, oid in packed.items() if ref in exact or ref.startswith(below)}
    found = Listing({}, {})
    # A loose ref overrides the packed one, which is its older value.
    for ref, raw in {**wanted, **loose}.items():
        _take(at, packed, ref, raw, found)
    return found


def head(url: str) -> str:
    """Return the ref that HEAD names; empty if it names none.  Raise NotFiles, OSError."""
    raw = _loose(_directory(url) / "HEAD") or b""
    return raw[4:].strip().decode(errors="replace") if raw.startswith(b"ref:") else ""


def _directory(url: str) -> Path:
    path = Path(url)
    at = path / ".git" if (path / ".git" / "HEAD").exists() else path
    # A repository with reftables also has a directory `refs`, but without refs.
    if not (at / "HEAD").exists() or not (at / "refs").is_dir() or (at / "reftable").exists():
        raise NotFiles(url)
    return at


def _take(at: Path, packed: dict[str, bytes], ref: str, raw: bytes, found: Listing) -> None:
    try:
        ref.encode()
    except UnicodeEncodeError:
        shown = ref.encode(errors="surrogateescape").decode(errors="backslashreplace")
        found.unreadable[shown] = "its name is not UTF-8"
        return
    if not pygit2.reference_is_valid_name(ref):
        found.unreadable[ref] = "git does not allow this name"
        return
    for _ in range(SYMBOLIC_MAX):
        if _ID.fullmatch(raw):
            if raw.strip(b"0 \n\r\t"):
                found.refs[ref] = raw.strip().decode()
            else:
                found.unreadable[ref] = "it names no object"
            return
        target = os.fsdecode(raw[4:].strip()) if raw.startswith(b"ref:") else ""
        # A ref must not make us read a file outside of the repository.
        if not target.startswith("refs/") or ".." in target:
            break
        following = _loose(at / target) or packed.get(target)
        if following is None:
            found.unreadable[ref] = "it names a ref that does not exist"
            return
        raw = following
    found.unreadable[ref] = "its file does not contain a commit"


def _below(at: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the loose refs below the directories, at any depth."""
    waiting = [name.rstrip("/") for name in names]
    while waiting:
        directory = waiting.pop()
        try:
            entries = list(os.scandir(at / directory))
        except (FileNotFoundError, NotADirectoryError):
            continue  # git removes directories that are empty
        for entry in entries:
            name = f"{directory}/{entry.name}"
            if entry.name.startswith(".") or entry.name.endswith(".lock"):
                continue  # git ignores these, too
            if entry.is_dir(follow_symlinks=False):
                waiting.append(name)
            elif (raw := _loose(at / name)) is not None:
                yield name, raw


def _loose(path: Path) -> bytes | None:
    """Return the content of the file, or None if it does not exist. Anything but a regular file counts as empty."""
    try:
        # A link is the oldest form of a symbolic ref, which git still reads.
        if path.is_symlink():
            return b"ref: " + os.fsencode(os.readlink(path))
        # Without O_NONBLOCK, opening a FIFO that somebody created there would block forever.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if path.is_dir():
            return None
        return f"? {error.strerror}".encode()
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            return None
        return os.read(file, LOOSE_MAX_BYTES) if stat.S_ISREG(mode) else b""
    finally:
        os.close(file)


def _packed(at: Path) -> dict[str, bytes]:
    try:
        lines = (at / "packed-refs").read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        oid, space, ref = line.partition(b" ")
        if space and _ID.fullmatch(oid):
            found[os.fsdecode(ref)] = oid
        # A damaged file must not look like a repository whose refs were all deleted.
        elif line and not line.startswith((b"#", b"^")):
            raise OSError(f"{at / 'packed-refs'} has a line that git did not write: {line[:200]!r}")
    return found


class Remote:
    """Read a repository at a URL or, if that begins with a slash, in a directory."""

    def __init__(
        self,
        url: str,
        talks: asyncio.Semaphore | None = None,
        access: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
        forget: Callable[[], object] | None = None,
    ) -> None:
        """Make a remote. `talks` limits concurrent calls to the servers of the connection. `access` returns git's
        settings, with credentials that may be short-lived, before each command; it raises RemoteError. `forget`
        discards credentials that the server refuses."""
        self.url, self._access, self._forget = url, access, forget
        self.atomic = True
        """Whether the remote can update several refs atomically; False once it has failed to do so."""
        self._shut_s = 0.0
        """Time, by the loop's clock, until which credentials are not renewed again, because the server refused renewed
        ones."""
        self._talks = talks or asyncio.Semaphore(1)
        self._heads_lock = asyncio.Lock()
        self._heads: dict[str, str] = {}
        self._last_request = self._last_answered = 0
        """Number of the last request for the heads, and of the last request that the current `_heads` answer."""

    def move(self, url: str) -> None:
        """Read the repository at this URL from now on."""
        self.url = url

    def update_singly(self) -> None:
        """Stop updating several refs atomically, which the remote cannot do."""
        self.atomic = False

    async def refs(self, *names: str) -> dict[str, str]:
        """Return ref -> current commit (annotated tags: the tag object), for all refs, those with these names, or those
        below a name that ends with a slash. Raise RemoteError."""
        return (await self.listing(*names)).refs

    async def listing(self, *names: str) -> Listing:
        """Return the same as `refs`, and the refs whose commits are unknown. Raise RemoteError."""
        found = await self._in_place(lambda: listed(self.url, names))
        return found if found is not None else await self.listing_by_git(*names)

    async def listing_by_git(self, *names: str) -> Listing:
        """Return the same as `listing`, always by running git. Raise RemoteError."""
        patterns = (f"{name}*" if name.endswith("/") else name for name in names)
        _, out = await self.talk("ls-remote", "--", self.url, *patterns, limits=LISTING_LIMITS)
        return _listing(out, names)

    async def heads(self) -> dict[str, str]:
        """Return branch ref -> commit, as of some moment after the call. Calls that arrive while another one is running
        share one later answer. Raise RemoteError."""
        self._last_request += 1
        request = self._last_request
        async with self._heads_lock:
            if self._last_answered < request:
                # A request that arrives while git runs needs another run: git may have read the refs before it.
                all_so_far = self._last_request
                self._heads = await self.refs(HEADS)
                self._last_answered = all_so_far
            return dict(self._heads)

    async def default_branch(self) -> str:
        """Return the branch that HEAD names, or an empty string. Raise RemoteError."""
        found = await self._in_place(lambda: head(self.url))
        if found is not None:
            return found.removeprefix(HEADS)
        _, out = await self.talk("ls-remote", "--symref", "--", self.url, _HEAD, limits=LISTING_LIMITS)
        first = out.split("\n", 1)[0]
        return first.split()[1].removeprefix(HEADS) if first.startswith("ref:") else ""

    async def talk(self, *args: str, at: Path | None = None, stdin: str = "", limits: GitLimits) -> tuple[int, str]:
        """Return git's output of a command that contacts the server. Raise RemoteError."""
        async with self._talks:
            # Get credentials only now: they may be short-lived, and waiting for a place may take minutes.
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
                    # The server refuses the renewed credentials, too: a revoked account must not make each command
                    # renew them again.
                    self._shut_s = asyncio.get_running_loop().time() + RENEW_MIN_S
                raise

    async def _let_in(self, refused: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings for another attempt; the refused ones if there are no others."""
        if self._access is None or self._forget is None:
            return refused
        fresh = await self._access()
        if fresh == refused and asyncio.get_running_loop().time() >= self._shut_s:  # no other caller has renewed them
            self._forget()
            fresh = await self._access()
        return fresh

    async def _in_place(self, read: Callable[[], T]) -> T | None:
        """Read the repository directly; return None if git itself must run, which handles the case or reports the
        error.
        """
        if not self.url.startswith("/"):
            return None
        try:
            return await asyncio.to_thread(read)
        except NotFiles:
            return None
        except OSError as error:
            raise RemoteError(("ls-remote",), 1, f"its refs cannot be read: {error}") from error


def _listing(out: str, names: Sequence[str]) -> Listing:
    """Parse the output of ls-remote. A name that is not UTF-8 counts as unreadable, and contains replacement
    characters."""
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
