"""What refs a repository has now.  One on this machine is read in place, others are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pygit2

from headgate.adapters.git.command import git, refs_in

T = TypeVar("T")
HEADS, _HEAD = "refs/heads/", "HEAD"


class Remote:
    """A repository at a URL or, when that begins with a slash, in a directory."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._looking = asyncio.Lock()
        self._heads: dict[str, str] = {}
        self._asked = self._answered = 0
        """Questions for the heads, and the last one that they answer."""

    async def refs(self, *names: str) -> dict[str, str]:
        """ref -> commit (of an annotated tag the tag), as they are now: all, or those named, or below a name that ends
        in a slash.  Raises RemoteError."""
        if self.url.startswith("/"):
            found = await asyncio.to_thread(_read, self.url, names)
            if found is not None:
                return found
        patterns = (f"{name}*" if name.endswith("/") else name for name in names)
        _, out = await git("ls-remote", self.url, *patterns, remote=True)
        return {ref: commit for ref, commit in refs_in(out).items() if _meant(ref, names)}

    async def heads(self) -> dict[str, str]:
        """Branch ref -> commit, as they were at some moment since this was asked: who asks while others are being
        answered shares one answer with those who do so, too.  Raises RemoteError."""
        self._asked += 1
        asked = self._asked
        async with self._looking:
            if self._answered < asked:
                all_so_far = self._asked
                self._heads = await self.refs(HEADS)
                self._answered = all_so_far
            return dict(self._heads)

    async def default_branch(self) -> str:
        """As its HEAD says; empty when that says nothing.  Raises RemoteError."""
        if self.url.startswith("/"):
            found = await asyncio.to_thread(_read_head, self.url)
            if found is not None:
                return found
        _, out = await git("ls-remote", "--symref", self.url, _HEAD, remote=True)
        first = out.split("\n", 1)[0]
        return first.split()[1].removeprefix(HEADS) if first.startswith("ref:") else ""


def _meant(ref: str, names: Sequence[str]) -> bool:
    below = tuple(name for name in names if name.endswith("/"))
    return ref != _HEAD and (not names or ref in names or ref.startswith(below))


def _read(url: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """None: git itself must be asked, which then knows what to do or what is wrong."""
    return _of(url, lambda repository: dict(_found(repository, names)))


def _read_head(url: str) -> str | None:
    """None: as before."""

    def branch(repository: pygit2.Repository) -> str:
        target = repository.references[_HEAD].target
        return target.removeprefix(HEADS) if isinstance(target, str) else ""

    return _of(url, branch)


def _of(url: str, ask: Callable[[pygit2.Repository], T]) -> T | None:
    try:
        repository = pygit2.Repository(url)
        try:
            return ask(repository)
        finally:
            repository.free()
    except (pygit2.GitError, KeyError, ValueError, OSError):
        return None


def _found(repository: pygit2.Repository, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if names and not any(name.endswith("/") for name in names):
        several = (repository.references.get(name) for name in names)
        here = [ref for ref in several if ref is not None]
    else:
        here = [ref for ref in repository.references.iterator() if _meant(ref.name, names)]
    for ref in here:
        target = ref.target
        yield ref.name, str(target if isinstance(target, pygit2.Oid) else ref.resolve().target)
