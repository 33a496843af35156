"""Running git: work on objects knows no configuration but ours, talk with a remote has the user's."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.base.errors import UserError

TIMEOUT_S = 300.0
GRACE_S = 5.0
"""How long a command that is no longer wanted may take to remove its lock files."""

NEEDED = (2, 38)
"""The first with `git merge-tree --write-tree`."""
ANSWER_MAX_S = 30.0

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "",
    "GIT_AUTHOR_NAME": "Headgate",
    "GIT_AUTHOR_EMAIL": "headgate@localhost",
    "GIT_COMMITTER_NAME": "Headgate",
    "GIT_COMMITTER_EMAIL": "headgate@localhost",
}
_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
_KEPT = ("GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_PROXY_", "GIT_HTTP_", "GIT_CURL_", "GIT_ALLOW_PROTOCOL")
_KEPT_CONFIG = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT")
_KEPT_NUMBERED = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_TRACE")
"""What says how to reach a remote; whatever else begins with GIT_ names a repository that is not meant."""

_PINS = (
    f"core.hooksPath={os.devnull}",
    "gc.auto=0",  # merged commits have no ref until they land: nothing may collect them
    "maintenance.auto=false",
)
_PINS_ALONE = (
    f"core.attributesFile={os.devnull}",
    f"attr.tree={EMPTY_TREE}",
    "merge.renames=true",
    "merge.directoryRenames=conflict",
    "merge.renameLimit=7000",
    "merge.renormalize=false",
    "diff.renames=true",
    "diff.renameLimit=1000",
    "diff.algorithm=histogram",
)
"""Same merge, same tree, whatever this git takes for its defaults."""
_PINS_REMOTE = (
    "fetch.writeCommitGraph=true",  # makes merging quick
    "fetch.unpackLimit=1",  # a commit appears with all of its files, or not at all
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    "push.followTags=false",
)


def _options(*pins: str) -> tuple[str, ...]:
    return tuple(word for pin in pins for word in ("-c", pin))


_OPTIONS = {False: _options(*_PINS, *_PINS_ALONE), True: _options(*_PINS, *_PINS_REMOTE)}


class GitError(Exception):
    """A git command failed; the text is what git said, `printed` its standard output."""

    def __init__(self, args: Sequence[str], code: int, said: str, printed: str = "") -> None:
        super().__init__(said.strip() or f"git {args[0]} ended with {code}")
        self.code, self.said, self.printed = code, said, printed


class Impossible(GitError):
    """What was asked cannot be done with these refs and commits, however often it is tried."""


class RemoteError(GitError):
    """A remote repository could not be talked to; later it may answer."""


def environment(remote: bool, of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of a command: without what would point it elsewhere; `remote` with the user's way of reaching remotes."""
    kept = (*_KEPT, *_KEPT_CONFIG, *_KEPT_NUMBERED) if remote else ()
    names = [name for name in of if not name.startswith("GIT_") or name == "GIT_EXEC_PATH" or name.startswith(kept)]
    return {**{name: of[name] for name in names}, **_ENVIRONMENT, **({} if remote else _ALONE)}


def check_git() -> None:
    """Raises UserError when the git on the path cannot do what is asked of it."""
    needed = ".".join(map(str, NEEDED))
    mend = f"install git {needed} or newer, and see that it comes first on PATH"
    try:
        done = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=ANSWER_MAX_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"git cannot be run: {error}; {mend}") from error
    found = re.match(r"git version (\d+)\.(\d+)\S*", done.stdout)
    if done.returncode or found is None:
        raise UserError(f"`git --version` does not say its version: {(done.stderr or done.stdout).strip()!r}; {mend}")
    if (int(found[1]), int(found[2])) < NEEDED:
        raise UserError(f"this is {found[0]}, but git {needed} or newer is needed; {mend}")


async def git(
    *args: str,
    at: Path | None = None,
    stdin: str = "",
    ok: tuple[int, ...] = (0,),
    remote: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, str]:
    """Exit status and standard output.  Raises GitError for a status not in `ok`, or after `timeout_s`.

    `remote`: another repository is talked to, as the user would; RemoteError when that fails.
    """
    where = () if at is None else ("-C", str(at))
    process = await asyncio.create_subprocess_exec(
        "git",
        *where,
        *_OPTIONS[remote],
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(remote),
        start_new_session=True,
    )
    failure = RemoteError if remote else GitError
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(stdin.encode(errors="surrogateescape"))
    except BaseException as error:
        await _end(process)
        if isinstance(error, TimeoutError):
            raise failure(args, -1, f"git {args[0]} did not end within {timeout_s:.0f} s") from error
        raise
    code = process.returncode or 0
    if code not in ok:
        printed = out.decode(errors="replace")
        raise failure(args, code, err.decode(errors="replace") or printed, printed)
    return code, out.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asked first, as a git that is killed leaves its lock files behind."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if not isinstance(error, TimeoutError):
            raise


def refs_in(listing: str) -> dict[str, str]:
    """ref -> commit, of what ls-remote prints; of an annotated tag the tag.  Names that are no UTF-8 are left out."""
    lines = (line.split("\t", 1) for line in listing.split("\n") if "\t" in line and "\ufffd" not in line)
    return {ref: commit for commit, ref in lines if not ref.endswith("^{}")}
