"""Running git."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 300.0

_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
    "GIT_AUTHOR_NAME": "Headgate",
    "GIT_AUTHOR_EMAIL": "headgate@localhost",
    "GIT_COMMITTER_NAME": "Headgate",
    "GIT_COMMITTER_EMAIL": "headgate@localhost",
    "GIT_OPTIONAL_LOCKS": "0",
}


class GitError(Exception):
    """A git command failed; the text is what git said."""

    def __init__(self, args: Sequence[str], code: int, said: str) -> None:
        super().__init__(said.strip() or f"git {args[0]} ended with {code}")
        self.code, self.said = code, said


async def git(*args: str, at: Path | None = None, stdin: str = "", ok: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """Exit status and standard output.  Raises GitError for a status not in `ok`, or after TIMEOUT_S."""
    where = () if at is None else ("-C", str(at))
    process = await asyncio.create_subprocess_exec(
        "git",
        *where,
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")}, **_ENVIRONMENT},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate(stdin.encode())
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise GitError(args, -1, f"git {args[0]} did not end within {TIMEOUT_S:.0f} s") from error
        raise
    code = process.returncode or 0
    if code not in ok:
        raise GitError(args, code, err.decode(errors="replace") or out.decode(errors="replace"))
    return code, out.decode(errors="replace")
