"""Copy shared git objects into a work tree, so that it can be carried to other machines."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

PASSES_MAX = 20
PIECE_SIZE_BYTES = 1 << 30
_LOOSE = "[0-9a-f][0-9a-f]"
_PARTS = (".pack", ".idx")
"""Suffixes of a pack's files, in order of copying: git finds a pack by its index."""
_OTHERWISE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY)
"""Errors of the kernel when it cannot copy between two files."""


def unshare(tree: Path, shares: Iterable[Path]) -> None:
    """Copy the objects in `shares` into the repository at `tree`, before any job writes there.  The owners of the
    directories may repack their objects in the meantime, but not remove any.  Raise OSError."""
    own = tree / ".git/objects"
    for share in shares:
        for _ in range(PASSES_MAX):
            # git may repack in the meantime: it removes an object's loose file or pack only once the object is in
            # another pack. If the set of packs is the same before and after, no object was missed.
            before = _packs(share)
            _copied(share, own, before)
            if _packs(share) == before:
                break
        else:
            raise OSError(errno.EAGAIN, "its packs change faster than they can be copied", str(share))
    # Do this last: until all objects are copied, the repository needs those that it borrows.
    (own / "info/alternates").unlink(missing_ok=True)


def _packs(share: Path) -> set[str]:
    return {pack.stem for pack in (share / "pack").glob("*.idx")}


def _copied(share: Path, own: Path, packs: Iterable[str]) -> None:
    for directory in share.glob(_LOOSE):
        (own / directory.name).mkdir(exist_ok=True)
        for name in _names(directory):
            _copy(directory / name, own / directory.name / name)
    (own / "pack").mkdir(exist_ok=True)
    for pack in packs:
        for part in _PARTS:
            _copy(share / "pack" / f"{pack}{part}", own / "pack" / f"{pack}{part}")


def _names(directory: Path) -> list[str]:
    """Return the names in a directory; none if it is gone, since git removes it with its last object."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _copy(source: Path, place: Path) -> None:
    """Copy a file. Skip a file that is gone: its objects are in another pack, which the next pass copies."""
    if place.exists():
        return
    try:
        with open(source, "rb") as read, open(place, "xb") as written:
            try:  # on some file systems, both files then share their blocks
                while os.copy_file_range(read.fileno(), written.fileno(), PIECE_SIZE_BYTES):
                    pass
            except OSError as error:
                if error.errno not in _OTHERWISE:
                    raise
                shutil.copyfileobj(read, written)
    except FileNotFoundError:
        return
