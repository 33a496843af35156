"""Run git: work on objects uses only our configuration; calls to a remote use the user's as well."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from headgate.base.errors import RepositoryError, UserError
from headgate.base.pipes import OutputTooLarge, communicate, ends, put_down

GRACE_S = 5.0
"""How long a command that is cancelled may take to remove its lock files."""
# Longer than any time limit of a command, so the timer never fires.
NEVER_S = 86_400.0
NICE = 10
"""Nice value of a command that gives way: it gets about a tenth of the processor time that another process gets."""

NEEDED = (2, 38)
"""First version of git with `git merge-tree --write-tree`."""
ANSWER_MAX_S = 30.0
MESSAGE_MAX_CHARS = 2_000

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    # A ref below refs/replace would substitute other objects, so that the same merge elsewhere would give another
    # commit.
    "GIT_NO_REPLACE_OBJECTS": "1",
    # Otherwise `git status` in a user's work tree locks its index in order to refresh it.
    "GIT_OPTIONAL_LOCKS": "0",
    # Errors are distinguished by their English texts (`_DAMAGED`, `_RACES` and others).
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "",
    "GIT_AUTHOR_NAME": "Headgate",
    "GIT_AUTHOR_EMAIL": "headgate@localhost",
    "GIT_COMMITTER_NAME": "Headgate",
    "GIT_COMMITTER_EMAIL": "headgate@localhost",
}
# Work on objects must give the same commit on every machine, whatever its users have configured.
_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
_PASSED = ("GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_PROXY_", "GIT_HTTP_", "GIT_CURL_", "GIT_ALLOW_PROTOCOL")
_PASSED_CONFIG = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT")
_PASSED_NUMBERED = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_TRACE")
"""Variables that configure access to a remote; others that begin with GIT_ could make git use the wrong repository."""

_SSH = ("GIT_SSH", "GIT_SSH_COMMAND")
"""Variables that take precedence over git's settings."""
_PROTOCOLS = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}
"""Allowed protocols.

Those that run commands named in a URL are missing, unless the operator's environment allows them.
"""
# A shell sets the limits, since a `preexec_fn` between fork and exec is unsafe in a process with threads. The shell
# then becomes git by `exec`, so signals and the exit status are git's own.
_LIMITED = ("sh", "-c", 'ulimit -f "$1"; ulimit -d "$2"; shift 2; exec git "$@"', "git")

_PINS = (
    f"core.hooksPath={os.devnull}",
    "gc.auto=0",  # merged commits have no ref until they land and must not be collected
    "maintenance.auto=false",
)
_PINS_ALONE = (
    f"core.attributesFile={os.devnull}",
    # In a bare repository, newer versions of git read the .gitattributes of HEAD, so every merge would depend on that
    # branch.
    f"attr.tree={EMPTY_TREE}",
    "merge.renames=true",
    "merge.directoryRenames=conflict",
    "merge.renameLimit=7000",
    "merge.renormalize=false",
    "diff.renames=true",
    "diff.renameLimit=1000",
    "diff.algorithm=histogram",
)
"""Settings that make the same merge give the same tree with any version of git."""
_PINS_REMOTE = (
    "fetch.writeCommitGraph=true",  # speeds up merging
    "fetch.unpackLimit=1",  # a commit appears with all of its files, or not at all
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    "push.followTags=false",
    # End a transfer that stays below 1,000 bytes a second for a minute, long before the time limit of the command.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)


def _options(*pins: str) -> tuple[str, ...]:
    return tuple(word for pin in pins for word in ("-c", pin))


_OPTIONS = {False: _options(*_PINS, *_PINS_ALONE), True: _options(*_PINS, *_PINS_REMOTE)}


_ADVICE = """fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists."""
"""Text that git appends to every error of a remote; the lines before it give the reason."""


class GitError(RepositoryError):
    """Report a failed git command; the message is git's error, `printed` its standard output."""

    def __init__(self, args: Sequence[str], code: int, message: str, printed: str = "") -> None:
        super().__init__(message.strip() or f"git {args[0]} ended with {code}")
        self.code, self.message, self.printed = code, message, printed


class GitImpossible(GitError):
    """Report that a request is impossible with these refs and commits, so that a retry cannot succeed."""


class RemoteError(GitError):
    """Report that a remote repository could not be reached; a later attempt may succeed."""


class OverTime(RemoteError):
    """Report that the remote did not answer in time."""


class GitTimeout(GitError):
    """Report that local work took longer than its limit."""


# These errors are retried, while other failures of a merge are reported to the author of the change.
_OF_THIS_MACHINE = re.compile(
    r"no space left|disk quota|too many open files|read-only file system"
    r"|input/output error|unable to create|unable to write|failed to write|cannot fork|resource temporarily",
    re.IGNORECASE,
)


_DAMAGED = re.compile(
    r"bad object|could not parse|could not read|unable to read|missing|corrupt|malformed|not a tree|not a valid"
    r"|is a (blob|tree|tag)|is not a commit|not something we can merge|bad tree|too-short tree|empty filename in tree",
    re.IGNORECASE,
)


def is_damage(error: GitError) -> bool:
    """Return whether git failed because of the objects it worked on: they are damaged, missing or of the wrong type."""
    return _DAMAGED.search(error.message) is not None and not is_of_this_machine(error)


def is_want_of_memory(error: GitError) -> bool:
    """Return whether git hit its memory limit; if the machine runs out of memory, it kills git instead."""
    return re.search(r"cannot allocate memory|out of memory", error.message, re.IGNORECASE) is not None


def is_of_this_machine(error: GitError) -> bool:
    """Return whether git failed because this machine lacks something, such as disk space, and not because of its
    input.
    """
    return _OF_THIS_MACHINE.search(error.message) is not None


def environment(remote: bool, of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a command, without variables that could redirect it; `remote`: with the user's settings
    for remotes."""
    allowed = (*_PASSED, *_PASSED_CONFIG, *_PASSED_NUMBERED) if remote else ()
    # GIT_EXEC_PATH stays in either case: without it, a git that was moved after its build does not find its
    # subcommands.
    names = [name for name in of if not name.startswith("GIT_") or name == "GIT_EXEC_PATH" or name.startswith(allowed)]
    # Later entries win: the operator may override the protocols, but not the variables that the parsers and merges rely
    # on.
    return {**_PROTOCOLS, **{name: of[name] for name in names}, **_ENVIRONMENT, **({} if remote else _ALONE)}


def with_config(known: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with further settings of git, whose values therefore do not show in process lists."""
    count = int(known.get("GIT_CONFIG_COUNT") or 0)
    # Drop the operator's GIT_SSH_COMMAND: it overrides core.sshCommand, so that ssh would use another key.
    found = {name: value for name, value in known.items() if "core.sshCommand" not in config or name not in _SSH}
    for number, (key, value) in enumerate(config.items(), count):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found | {"GIT_CONFIG_COUNT": str(count + len(config))} if config else dict(known)


def check_git() -> None:
    """Raise UserError if the git on the path cannot do what is needed."""
    needed = ".".join(map(str, NEEDED))
    mend = f"install git {needed} or newer, and make sure that it comes first on PATH"
    try:
        done = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=ANSWER_MAX_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"git cannot be run: {error}; {mend}") from error
    found = re.match(r"git version (\d+)\.(\d+)\S*", done.stdout)
    if done.returncode or found is None:
        raise UserError(f"`git --version` prints no version: {(done.stderr or done.stdout).strip()!r}; {mend}")
    if (int(found[1]), int(found[2])) < NEEDED:
        raise UserError(f"this is {found[0]}, but git {needed} or newer is needed; {mend}")


class GitLimits(NamedTuple):
    """Hold the limits of one command."""

    timeout_s: float = 300.0
    out_max_bytes: int = 256 * 2**20
    """Size of the command's output."""
    file_max_bytes: int = 64 * 2**30
    """Size of each file that the command writes."""
    memory_max_bytes: int = 8 * 2**30
    """Memory of each process, without mapped files."""
    gentle_after_s: float = NEVER_S
    """Time after which the command gives way to other processes."""


_LIMITS = GitLimits()


async def git(
    *args: str,
    at: Path | None = None,
    stdin: str = "",
    ok: tuple[int, ...] = (0,),
    remote: bool = False,
    limits: GitLimits = _LIMITS,
    config: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    """Run git and return its exit status and standard output. Raise GitError for a status not in `ok`, GitTimeout
    beyond the limits. `remote`: the command contacts another repository with the user's settings; raise RemoteError
    when that fails, OverTime if it takes too long. `config`: settings of git for this command alone, which may be
    secret."""
    where = () if at is None else ("-C", str(at))
    process = await asyncio.create_subprocess_exec(
        *_LIMITED,
        # The shell's `ulimit -f` counts blocks of 512 bytes, `ulimit -d` counts kilobytes.
        str(limits.file_max_bytes // 512),
        str(limits.memory_max_bytes // 1024),
        *where,
        *_OPTIONS[remote],
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=with_config(environment(remote), config),
        # In a group of its own, `_signal` reaches ssh and index-pack too; without a terminal, ssh cannot wait for a
        # person's answer.
        start_new_session=True,
    )
    failure, overdue = (RemoteError, OverTime) if remote else (GitError, GitTimeout)
    gentle = asyncio.get_running_loop().call_later(limits.gentle_after_s, _give_way, process)
    try:
        async with asyncio.timeout(limits.timeout_s):
            out, err = await communicate(process, stdin.encode(errors="surrogateescape"), limits.out_max_bytes)
    # Even a cancellation must not leave a git process behind that continues to write to the repository.
    except BaseException as error:
        await _end(process)
        if isinstance(error, TimeoutError):
            raise overdue(args, -1, f"git {args[0]} did not end within {limits.timeout_s:.0f} s") from error
        if isinstance(error, OutputTooLarge):
            raise overdue(args, -1, f"git {args[0]} printed more than {limits.out_max_bytes} bytes") from error
        raise
    finally:
        gentle.cancel()
    code = process.returncode or 0
    if code not in ok:
        printed = out.decode(errors="replace")
        raise failure(
            args, code, printable(err.decode(errors="replace")) or printable(printed[:MESSAGE_MAX_CHARS]), printed
        )
    return code, out.decode(errors="replace")


def printable(text: str) -> str:
    """Return the output of git, or of a remote through it, in printable form."""
    # A carriage return overwrites a progress line; only its last state matters.
    lines = (line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").rstrip("\r").split("\n"))
    shown = "\n".join(
        "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line.rstrip("\0 ")) for line in lines
    )
    shown = shown.strip()
    shown = shown.removesuffix(_ADVICE).strip() or shown
    if len(shown) <= MESSAGE_MAX_CHARS:
        return shown
    # The reason may be in the first line (from git) or in the last one (from a hook), so keep both ends.
    return f"{shown[: MESSAGE_MAX_CHARS // 2]}\n[…]\n{shown[-MESSAGE_MAX_CHARS // 2 :]}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End git and everything it has started. Terminate it first, since a killed git leaves its lock files behind."""
    runs = process.returncode is None
    try:
        if runs:
            _signal(process, signal.SIGTERM)
            await ends(process, GRACE_S)
    finally:
        if runs:
            # Kill the group even if git has ended in time: its helpers may have ignored the first signal.
            _signal(process, signal.SIGKILL)
        await put_down(process)


def _give_way(process: asyncio.subprocess.Process) -> None:
    """Reduce the priority of the process's entire group."""
    # The process may have ended before the timer fires.
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, process.pid, NICE)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to the entire group that the process leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
