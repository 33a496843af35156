"""Keep the repositories of the stand-in: commits, test merges, and git over HTTP as GitHub serves it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pygit2
from aiohttp import web

from headgate.testing.forges.github.model import FakeGitHubAccount
from headgate.testing.repositories import empty_repository, run_git

ZERO = "0" * 40
_UPDATE = """#!/bin/sh
if printf '%s\\n' "$STAND_IN_REFUSED" | grep -qxF "$1"; then
  echo "error: GH006: Protected branch update failed for $1." >&2
  exit 1
fi
"""


class HostedRepository(Protocol):
    """Declare something that has a repository, possibly of another forge."""

    @property
    def git_dir(self) -> Path: ...


class Proposed(Protocol):
    """Declare something to be merged."""

    @property
    def repository(self) -> HostedRepository: ...
    @property
    def head_sha(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FakeGitHubFile:
    """Describe a file that a pull request changes."""

    path: str
    status: str
    previous: str | None
    added: int
    deleted: int
    blob: str | None


SETTINGS = {
    "http.receivepack": "true",
    "transfer.hideRefs": "refs/pull-base",
    # Forges let clients fetch a commit by its id, without a ref that names it.
    "uploadpack.allowAnySHA1InWant": "true",
    "receive.shallowUpdate": "true",
}
"""Configuration of the repositories that git serves."""


def make(git_dir: Path, branch: str) -> None:
    """Make an empty repository."""
    empty_repository(git_dir, branch, SETTINGS)
    hook = git_dir / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(_UPDATE)
    hook.chmod(0o755)


def opened(repository: HostedRepository) -> Any:
    """Return the repository as the library has it: it has no types."""
    return pygit2.Repository(str(repository.git_dir))


def heads(repository: HostedRepository) -> dict[str, str]:
    """Return branch -> commit."""
    git = opened(repository)
    names = [name for name in git.references if name.startswith("refs/heads/")]
    return {name.removeprefix("refs/heads/"): str(git.references[name].target) for name in names}


def has(repository: HostedRepository, commit: str) -> bool:
    """Return whether the repository has a commit."""
    git = opened(repository)
    return bool(re.fullmatch("[0-9a-f]{40}", commit)) and isinstance(git.get(commit), pygit2.Commit)


def point(repository: HostedRepository, ref: str, commit: str | None) -> None:
    """Set a ref; None removes it."""
    references = opened(repository).references
    if commit is not None:
        references.create(ref, commit, force=True)
    elif ref in references:
        references.delete(ref)


def signature(account: FakeGitHubAccount, at_s: float) -> pygit2.Signature:
    """Return the author of a commit."""
    email = account.email or f"{account.id}+{account.login.removesuffix('[bot]')}@users.noreply.github.com"
    return pygit2.Signature(account.name or account.login, email, int(at_s), 0)


def commit(
    repository: HostedRepository,
    parents: list[str],
    files: Mapping[str, str | None],
    message: str,
    who: pygit2.Signature,
) -> str:
    """Write a commit on the first parent with some files changed (None: removed); return it."""
    git = opened(repository)
    index = pygit2.Index()
    if parents:
        index.read_tree(git[parents[0]].tree)
    for path, text in files.items():
        if text is None:
            index.remove(path)
        else:
            # Jobs run scripts of the repository, which must be executable.
            mode = pygit2.enums.FileMode.BLOB_EXECUTABLE if text.startswith("#!") else pygit2.enums.FileMode.BLOB
            index.add(pygit2.IndexEntry(path, git.create_blob(text.encode()), mode))
    return str(git.create_commit(None, who, who, message, index.write_tree(git), parents))


def bring(from_: HostedRepository, to: HostedRepository, commit_id: str, ref: str) -> None:
    """Copy a commit from another repository, and set a ref to it."""
    if from_.git_dir != to.git_dir and not has(to, commit_id):
        run_git("-c", "uploadpack.allowAnySHA1InWant=true", "fetch", "-q", str(from_.git_dir), commit_id, at=to.git_dir)
    point(to, ref, commit_id)


def contains(repository: HostedRepository, tip: str, commit_id: str) -> bool:
    """Return whether a commit is reachable from a tip."""
    git = opened(repository)
    return tip == commit_id or bool(git.descendant_of(tip, commit_id))


def parted(repository: HostedRepository, base: str, head: str) -> tuple[int, int]:
    """Return how many commits the head is ahead of and behind the base."""
    ahead, behind = opened(repository).ahead_behind(head, base)
    return int(ahead), int(behind)


def own_commits(pull: Proposed, base: str) -> list[str]:
    """Return the commits of a pull request, oldest first."""
    git = opened(pull.repository)
    walk = git.walk(pull.head_sha, pygit2.enums.SortMode.TOPOLOGICAL | pygit2.enums.SortMode.REVERSE)
    walk.hide(base)
    return [str(one.id) for one in walk]


def files_of(pull: Proposed, base: str) -> list[FakeGitHubFile]:
    """Return the files that a pull request changes since it left its base."""
    git = opened(pull.repository)
    origin = git.merge_base(base, pull.head_sha)
    old = git[origin].tree if origin else git[git.TreeBuilder().write()]
    diff = git.diff(old, git[pull.head_sha].tree)
    diff.find_similar()
    return list(_files(diff))


def _files(diff: Any) -> Iterator[FakeGitHubFile]:
    words = {"A": "added", "D": "removed", "M": "modified", "R": "renamed", "C": "copied", "T": "changed"}
    for patch in diff:
        delta = patch.delta
        status = words.get(delta.status_char(), "changed")
        removed = status == "removed"
        path = delta.old_file.path if removed else delta.new_file.path
        previous = delta.old_file.path if status in ("renamed", "copied") else None
        _, added, deleted = patch.line_stats
        yield FakeGitHubFile(path, status, previous, added, deleted, None if removed else str(delta.new_file.id))


def merged_tree(repository: HostedRepository, base: str, head: str) -> Any | None:
    """Return the tree of the two merged; None when they conflict."""
    git = opened(repository)
    index = git.merge_commits(base, head)
    return None if index.conflicts is not None else index.write_tree(git)


def merge(pull: Proposed, base: str, method: str, message: str, who: pygit2.Signature) -> str | None:
    """Return the new tip of the base branch, which is not moved; None when there is a conflict."""
    git = opened(pull.repository)
    if method == "rebase":
        return _rebase(git, own_commits(pull, base), base, who)
    tree = merged_tree(pull.repository, base, pull.head_sha)
    if tree is None:
        return None
    parents = [base] if method == "squash" else [base, pull.head_sha]
    return str(git.create_commit(None, who, who, message, tree, parents))


def _rebase(git: Any, commits: list[str], base: str, who: pygit2.Signature) -> str | None:
    for one in (git[name] for name in commits):
        # GitHub does not rebase a pull request that contains merges either.
        if len(one.parents) != 1:
            return None
        index = git.merge_trees(one.parents[0].tree, git[base].tree, one.tree)
        if index.conflicts is not None:
            return None
        base = str(git.create_commit(None, one.author, who, one.message, index.write_tree(git), [base]))
    return base


def updates(body: bytes) -> dict[str, tuple[str, str]]:
    """Return the ref updates of a push, which precede its pack: ref -> old and new commit."""
    found, at = {}, 0
    # A pkt-line begins with its length in four hex digits, these included; a flush packet (0000) ends the list:
    # `00a5OLD NEW refs/heads/main\0report-status …`.
    while (length := int(body[at : at + 4] or b"0", 16)) > 4:
        line = body[at + 4 : at + length].split(b"\0")[0].decode().rstrip("\n")
        at += length
        old, _, rest = line.partition(" ")
        new, _, ref = rest.partition(" ")
        if ref:
            found[ref] = (old, new)
    return found


async def serve_git(
    request: web.Request, repository: HostedRepository, path: str, refuses: Callable[[str], bool]
) -> web.StreamResponse:
    """Answer git's client with the output of `git http-backend`. `refuses` returns whether a push of a ref is
    refused."""
    body = await request.read()
    refused = ""
    if path == "git-receive-pack":
        # The hook of the repository refuses them one by one, so that a push of several refs behaves as at the forge.
        refused = "\n".join(ref for ref in updates(body) if refuses(ref))
    environment = {
        "PATH": os.environ["PATH"],
        # The configuration of the machine that runs the tests must not change what the forge does.
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_PROJECT_ROOT": str(repository.git_dir),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": f"/{path}",
        "REQUEST_METHOD": request.method,
        "QUERY_STRING": request.query_string,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "REMOTE_USER": "stand-in",
        "REMOTE_ADDR": "127.0.0.1",
        "STAND_IN_REFUSED": refused,
    }
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "git", "http-backend", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=environment
    )
    output, _ = await process.communicate(body)
    # git http-backend speaks CGI: headers, an empty line, the body; a status only if it is not 200.
    head, _, rest = output.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
    status = int(headers.pop("Status", "200 OK").split()[0])
    return web.Response(status=status, headers=headers, body=rest)
