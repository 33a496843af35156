"""The file system of a command in a container, put together by its supervisor: standard library only, see `supervisor`.

A box is JSON: `layers` (directories below `store`, the uppermost first; none: an empty file system), `upper` and
`scratch` (directories that take what the command writes; overlayfs needs the second), `binds` (source, path in the
box, whether it may be written; no source: an empty directory), `memory` (paths with a
file system in memory each, of at most `memory_size_bytes`), `files` (path in the box -> text), `directories` (that must
be there), `owner` (the
number that the root user of the box has on this machine).

It is mounted at `PLACE` in a mount namespace of the supervisor's own, so that nothing is left of it when the last of
its processes has ended, whatever ended them.  An image and the job before may have put anything where something is to
be mounted: paths are walked one name at a time, and no link is followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headgate.adapters.process.confinement.calls import checked, libc

PLACE = "/mnt"
"""Mount point of the box: a directory on every machine that all users may traverse."""
_CLONE_NEWNS = 0x0002_0000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_HOLD = os.O_PATH | os.O_CLOEXEC
_STEP = _HOLD | os.O_DIRECTORY | os.O_NOFOLLOW


def enter(box: Mapping[str, Any]) -> None:
    """Mount the box for this process and what it starts.  Raises OSError."""
    checked(libc.unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    # systemd shares the mounts of `/` with every namespace: unless they are private here, the box would appear, and
    # stay, on the machine itself.
    _mount("none", "/", "", _REC | _PRIVATE)
    sources = [os.open(source, _HOLD) if source else -1 for source, _, _ in box["binds"]]  # the box may hide them
    _mount_root(box)
    # Every path below is walked from this descriptor: a plain path could leave the box by a link of the image.
    root = os.open(PLACE, _STEP)
    for path in box["directories"]:
        with _held(root, path, box["owner"], directory=True):
            pass
    for path, text in box["files"].items():
        _write(root, path, text, box["owner"])
    # Files come before mounts, so that they are written into the upper layer and never into a directory of the machine.
    for path in box["memory"]:
        with _held(root, path, box["owner"], directory=True) as there:
            # Without a size, tmpfs takes up to half of the machine's memory.
            options = f"mode=1777,size={box['memory_size_bytes']}"
            _mount("tmpfs", f"/proc/self/fd/{there}", "tmpfs", _NOSUID | _NODEV, options)
    for source, (_, path, writable) in zip(sources, box["binds"], strict=True):
        if source < 0:
            _cover(root, path, box["owner"])
        else:
            _bind(root, source, path, box["owner"], writable=writable)
            os.close(source)
    os.close(root)
    os.chdir("/")


def become_root() -> None:
    """Become the root user of the entered user namespace. Raise OSError."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _mount_root(box: Mapping[str, Any]) -> None:
    if not box["layers"]:
        _mount("tmpfs", PLACE, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
        return
    # The descriptors keep colons and commas in these paths out of the mount options, where they would be syntax.
    upper, scratch = (os.open(box[name], _STEP) for name in ("upper", "scratch"))
    # The kernel takes one page of mount options: names relative to the store leave room for many layers.
    os.chdir(box["store"])
    layers = ":".join(box["layers"])
    places = f"lowerdir={layers},upperdir=/proc/self/fd/{upper},workdir=/proc/self/fd/{scratch}"
    options = f"userxattr,{places}"  # podman without root marks directories that replace others in user attributes
    _mount("overlay", PLACE, "overlay", _NOSUID | _NODEV, options)
    os.close(upper)
    os.close(scratch)


def _cover(root: int, path: str, owner: int) -> None:
    """Mount an empty file system at a path in the box.  Raise OSError."""
    with _held(root, path, owner, directory=True) as target:
        _mount("tmpfs", f"/proc/self/fd/{target}", "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")


def _bind(root: int, source: int, path: str, owner: int, *, writable: bool) -> None:
    """Mount a source at a path in the box, read-only unless it is `writable`.  Raise OSError."""
    directory = stat.S_ISDIR(os.fstat(source).st_mode)
    # A file can only be mounted over a file: a link, or anything else there, is replaced and never followed.
    if not directory and not _is_file(root, path, owner):
        _write(root, path, "", owner)
    with _held(root, path, owner, directory=directory) as target:
        # Both ends are descriptors: nobody can replace a name between the walk and the mount.
        _mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", "", _BIND)
    # The kernel ignores MS_RDONLY in the call that binds; only a remount makes a bind read-only.
    if not writable:
        with _held(root, path, owner, directory=directory) as target:  # the mounted directory, not the one below it
            _mount("none", f"/proc/self/fd/{target}", "", _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def _is_file(root: int, path: str, owner: int) -> bool:
    """Tell whether a path in the box leads to a regular file.  Raise OSError."""
    with contextlib.suppress(FileNotFoundError), _held(root, path, owner, directory=False) as target:
        return stat.S_ISREG(os.fstat(target).st_mode)
    return False


def _write(root: int, path: str, text: str, owner: int) -> None:
    """Write a file at the path, in place of a file or a link. Raises OSError."""
    above, _, name = path.rpartition("/")
    with _held(root, above, owner, directory=True) as at:
        # Another device is a directory of the machine that was bound here: root would unlink and create files in it.
        if os.fstat(at).st_dev != os.fstat(root).st_dev:
            raise OSError(errno.ENOTDIR, "it is not of the image", path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        # O_EXCL and O_NOFOLLOW: a link or pipe that takes the name again must fail, not be written through by root.
        made = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=at)
        with open(made, "w") as file:
            os.fchown(made, owner, owner)
            os.fchmod(made, 0o644)
            file.write(text)


@contextmanager
def _held(root: int, path: str, owner: int, *, directory: bool) -> Iterator[int]:
    """Hold the object at a path of the box; missing directories are made. Raises OSError."""
    at = os.dup(root)
    try:
        names = [name for name in path.split("/") if name]
        for number, name in enumerate(names):
            try:
                # O_NOFOLLOW covers only the last name of a path, so each name is opened by itself.
                found = _step(at, name, owner) if directory or number < len(names) - 1 else _hold(at, name)
            except OSError as error:
                where = f"/{'/'.join(names[: number + 1])} of the image"
                raise OSError(error.errno, error.strerror, where) from error
            os.close(at)
            at = found
        yield at
    finally:
        os.close(at)


def _hold(at: int, name: str) -> int:
    return os.open(name, _HOLD | os.O_NOFOLLOW, dir_fd=at)


def _step(at: int, name: str, owner: int) -> int:
    try:
        return os.open(name, _STEP, dir_fd=at)
    except FileNotFoundError:
        # Opened again with O_NOFOLLOW rather than trusted: a link may have taken its place since.
        os.mkdir(name, dir_fd=at)
        found = os.open(name, _STEP, dir_fd=at)
        os.chown(name, owner, owner, dir_fd=at, follow_symlinks=False)
        # fchmod refuses O_PATH descriptors; the link in /proc names the same object.
        os.chmod(f"/proc/self/fd/{found}", 0o755)  # noqa: S103 - everybody in the container may look
        return found


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode() or None)
    done = libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None)
    checked(done, f"{kind or 'a directory'} cannot be mounted in the container")


def box_of(
    *, store: str = "", layers: Sequence[str] = (), upper: str = "", scratch: str = "",
    binds: Sequence[tuple[str, str, bool]] = (), files: Mapping[str, str] | None = None,
    directories: Sequence[str] = (), memory: Sequence[str] = (), memory_size_bytes: int = 0, owner: int,
) -> dict[str, Any]:  # fmt: skip
    """Return a box for a request."""
    return {
        "store": store,
        "layers": list(layers),
        "upper": upper,
        "scratch": scratch,
        "binds": list(binds),
        "files": dict(files or {}),
        "directories": list(directories),
        "memory": list(memory),
        "memory_size_bytes": memory_size_bytes,
        "owner": owner,
    }
