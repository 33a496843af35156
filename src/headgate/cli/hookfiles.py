"""Files in the hooks directory of a repository that others may write to, too: links that they made are not followed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headgate.base.errors import UserError

_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ_MAX_BYTES = 1_000_000


@contextmanager
def hooks_of(at: Path) -> Iterator[int]:
    """Provide the hooks directory of a repository, and create it if it is missing. A link is accepted only if it
    belongs to the current user. Raise UserError, OSError."""
    with _open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as repository:
        # Another process may create the directory between a check and this call, which is as good.
        with suppress(FileExistsError):
            os.mkdir("hooks", dir_fd=repository)
        # The descriptor is of the link itself: its owner and its target are read from one object, which nobody can
        # exchange between the two.
        with _open("hooks", _LINK, repository) as link:
            status = os.fstat(link)
            target = os.readlink("", dir_fd=link) if stat.S_ISLNK(status.st_mode) else ""
        if target and status.st_uid != os.geteuid():
            raise UserError(f"{at / 'hooks'} is a link of somebody else, to {target}; make it a directory")
        # Open the target that was checked, not the name again, which may lead elsewhere by now.
        flags = _DIRECTORY & ~os.O_NOFOLLOW if target else _DIRECTORY
        with _open(target or "hooks", flags, repository) as hooks:
            yield hooks


def text_of(hooks: int, name: str) -> str | None:
    """Return the text of the hook, empty if it is not a file, or None if there is none.  Raise OSError."""
    try:
        kind = os.stat(name, dir_fd=hooks, follow_symlinks=False).st_mode
        if not stat.S_ISREG(kind):
            return ""
        # Whoever may write here can put a FIFO under the name after the check; without O_NONBLOCK this would wait for
        # ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _open(name, flags, hooks) as found:
            return os.read(found, READ_MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None


def put(hooks: int, name: str, text: str, dress: Callable[[int], None]) -> None:
    """Write a hook, replacing an existing one. `dress` gives the file its owner and mode before it gets its name.
    Raise OSError."""
    # A name that cannot be guessed, and O_EXCL: nobody can have prepared a file or a link there to receive a secret.
    new = f".{name}.{secrets.token_hex(8)}"
    with _open(new, _NEW, hooks, 0o600) as made:
        try:
            with open(made, "w", closefd=False) as file:
                file.write(text)
            # Owner and mode are set through the descriptor and before the file has its name: git never runs it half
            # done, and nobody can exchange it in between.
            dress(made)
            os.replace(new, name, src_dir_fd=hooks, dst_dir_fd=hooks)
        except BaseException:
            # Also on an interrupt: the temporary file may contain the secret.
            os.unlink(new, dir_fd=hooks)
            raise


@contextmanager
def _open(path: str | Path, flags: int, at: int | None = None, mode: int = 0o777) -> Iterator[int]:
    found = os.open(path, flags, mode, dir_fd=at)
    try:
        yield found
    finally:
        os.close(found)
