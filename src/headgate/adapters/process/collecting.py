"""What a build leaves outside its work directory: files for the log place, and removing the rest."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any


def collect(source: Path, dest: Path, size_max_bytes: int) -> list[str]:
    """Moves the regular files below `source` to `dest`, never over one that is there, never through a symbolic link.

    Says what was left out, one line each.  Raises OSError.
    """
    said: list[str] = []
    left_bytes = size_max_bytes
    for directory, _, names in os.walk(source):
        relative = Path(directory).relative_to(source)
        for name in sorted(names):
            file, place = Path(directory, name), dest / relative / name
            found = file.lstat()
            if relative == Path() and name == "job-output.txt":
                continue  # a link to the real one
            if not stat.S_ISREG(found.st_mode):
                said.append(f"{relative / name} is not kept: it is no regular file")
            elif place.exists():
                said.append(f"{relative / name} is not kept: this name is Headgate's own")
            elif found.st_size > left_bytes:
                limit = f"{size_max_bytes / 1_000_000:g} MB"
                said.append(f"{relative / name} is not kept: with its {found.st_size} bytes the files exceed {limit}")
            else:
                left_bytes -= found.st_size
                place.parent.mkdir(parents=True, exist_ok=True)
                _move(file, place)
    return said


def _move(file: Path, place: Path) -> None:
    try:
        os.replace(file, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(file, place)


def remove(tree: Path) -> None:
    """The whole tree, also what a job made unwritable; nothing is said of what still resists."""

    def resist(function: Callable[..., Any], path: str, _: Any) -> None:  # as rmtree calls it
        try:
            os.chmod(os.path.dirname(path), 0o700)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
            function(path) if function is not os.scandir else shutil.rmtree(path, ignore_errors=True)
        except OSError:
            return

    if tree.exists():
        shutil.rmtree(tree, onerror=resist)
