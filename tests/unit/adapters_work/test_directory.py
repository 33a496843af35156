"""Test that whatever a job does to its directory, nothing outside is read, moved, changed or removed, and no reader
blocks."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adapters.work.collection import DEPTH_MAX, REMARKS_MAX, collect
from headgate.adapters.work.directory import Directory, Strange, remove
from tests.tiers import share

TREASURE = "treasure"
NAMES = st.sampled_from(
    ["logs", "a", "b", "home", "tmp", "vars.json", "results.json", "job-output.txt", "x\ny", "\x1b[2J"]
)
KINDS = (
    "file",
    "directory",
    "outside",
    "treasure",
    "up",
    "self",
    "fifo",
    "socket",
    "hard",
    "locked",
    "setuid",
    "sparse",
)
TREES = st.recursive(
    st.sampled_from(KINDS), lambda inner: st.dictionaries(NAMES, inner, max_size=5), max_leaves=20
).filter(lambda tree: isinstance(tree, dict))
SIZE_MAX_BYTES = 1_000_000
LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE = -100, 1, 2


class Ground:
    """Make a work directory that a job has written, and files of the host."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.stored, self.outside = root, root / "build/work", root / "kept", root / "outside"
        for place in (self.work, self.stored, self.outside / "inner"):
            place.mkdir(parents=True)
        for name in ("key", "inner/key"):
            (self.outside / name).write_text(TREASURE)
            (self.outside / name).chmod(0o600)
        self.before = self.host()

    def host(self) -> dict[str, tuple[int, int, str]]:
        """Return modes, links and contents of all files of the host."""
        found = {}
        for path in sorted(self.outside.rglob("*")):
            here = path.lstat()
            links = (
                here.st_nlink if stat.S_ISDIR(here.st_mode) else 0
            )  # a job may have hard links to files of its own user
            found[str(path)] = (here.st_mode, links, path.read_text() if path.is_file() else "")
        return found

    def fill(self, place: Path, tree: object) -> None:
        if isinstance(tree, dict):
            place.mkdir(exist_ok=True)
            for name, inner in tree.items():
                self.fill(place / name, inner)
        else:
            self.put(place, str(tree))

    def put(self, place: Path, kind: str) -> None:
        links = {"outside": self.outside, "treasure": self.outside / "key", "up": Path(".."), "self": place}
        if kind in links:
            place.symlink_to(links[kind])
        elif kind == "fifo":
            os.mkfifo(place)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as end, tempfile.TemporaryDirectory(dir="/tmp") as short:
                end.bind(f"{short}/s")
                os.rename(f"{short}/s", place)
        elif kind == "directory" or kind == "locked":
            place.mkdir()
            (place / "inner").write_text("own")
            place.chmod(0o000 if kind == "locked" else 0o755)
        else:
            place.write_text("own")
            if kind == "setuid":
                place.chmod(0o6777)
            elif kind == "sparse":
                os.truncate(place, 1 << 40)
            elif kind == "hard":
                os.link(place, place.with_name(f"{place.name}-again"))

    def is_unharmed(self) -> None:
        assert self.host() == self.before
        for path in self.stored.rglob("*"):
            here = path.lstat()
            assert stat.S_ISREG(here.st_mode) or stat.S_ISDIR(here.st_mode), path
            assert not stat.S_ISREG(here.st_mode) or (here.st_mode & 0o7133 == 0 and here.st_nlink == 1), path
            assert not path.is_file() or path.read_text() == "own"


@contextmanager
def ground() -> Iterator[Ground]:
    root = Path(tempfile.mkdtemp())
    try:
        yield Ground(root)
    finally:
        remove(root)
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.long
@pytest.mark.heavy
@settings(max_examples=share(150))
@given(TREES)
def test_a_directory_full_of_traps_harms_nobody(tree: dict[str, object]) -> None:
    with ground() as here:
        here.fill(here.work, tree)
        collected = collect(here.work / "logs", here.stored, SIZE_MAX_BYTES)
        assert all(line.isprintable() for line in collected)
        here.is_unharmed()
        with Directory.at(here.work) as work:
            for name in ("results.json", "vars.json", "home"):
                try:
                    assert TREASURE.encode() not in (work.read(name, 100) or b"")
                except (Strange, OSError) as refused:
                    assert str(refused)
            work.write("vars.json", b"ours")
            assert (here.work / "vars.json").read_text() == "ours" and not (here.work / "vars.json").is_symlink()
        here.is_unharmed()
        remove(here.work.parent)
        assert not here.work.parent.exists()
        here.is_unharmed()


def renamed(source: int, one: str | Path, dest: int, two: str, flags: int) -> None:
    """Rename as the kernel's `renameat2` does.  Raises OSError."""
    if LIBC.renameat2(source, os.fsencode(one), dest, os.fsencode(two), flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), one, None, two)


def put_back(file: Path, place: int) -> None:
    """Give the file one of its two names again, whichever is free, without replacing anything."""
    try:
        renamed(AT_FDCWD, file, place, "f", RENAME_NOREPLACE)
    except FileExistsError:
        renamed(AT_FDCWD, file, place, "key", RENAME_NOREPLACE)


def lay(target: Path, place: int) -> None:
    """Set the link again if it was removed instead of the file; if both names are in use, it still exists."""
    for name in ("f", "key"):
        with suppress(FileExistsError):
            os.symlink(target, name, dir_fd=place)
            return


@pytest.mark.long
@pytest.mark.heavy
def test_files_swapped_during_a_copy_do_not_lead_outside() -> None:
    """Run a thread that outlives its build and swaps directories, files and links to files of the host."""
    with ground() as here:
        (here.work / "logs/d").mkdir(parents=True)
        (here.work / "logs/d/f").write_text("own")
        (here.work / "out").symlink_to(here.outside)
        (here.work / "logs/d/key").symlink_to(here.outside / "key")
        places = [os.open(here.work / name, os.O_RDONLY) for name in ("", "logs", "logs/d")]
        over = threading.Event()

        def exchange() -> None:
            top, logs, inner = places
            while not over.is_set():
                for place, name, other, link in (
                    (inner, "f", inner, "key"),
                    (logs, "d", top, "out"),
                    (top, "logs", top, "out"),
                ):
                    with suppress(OSError):
                        renamed(place, name, other, link, RENAME_EXCHANGE)

        thread = threading.Thread(target=exchange)
        thread.start()
        taken = 0
        try:
            for _ in range(300):
                collect(here.work / "logs", here.stored, SIZE_MAX_BYTES)
                with Directory.at(here.work) as work:
                    work.write("vars.json", b"ours")
                    with suppress(OSError, Strange):
                        assert TREASURE.encode() not in (work.read("out", 100) or b"")
                here.is_unharmed()
                for file in [path for path in here.stored.rglob("*") if path.is_file()]:
                    put_back(file, places[2])
                    taken += 1
                lay(here.outside / "key", places[2])
        finally:
            over.set()
            thread.join()
            for place in places:
                os.close(place)
        assert taken, "something was there to be taken"
        remove(here.work.parent)
        assert not here.work.parent.exists()
        here.is_unharmed()


@pytest.mark.long
@pytest.mark.heavy
def test_a_very_deep_tree_is_removed_and_not_collected(tmp_path: Path) -> None:
    logs = tmp_path / "build/logs"
    logs.mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    here = os.open(logs, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    (message,) = collect(logs, tmp_path / "kept", SIZE_MAX_BYTES)
    assert f"it is more than {DEPTH_MAX} directories deep" in message
    remove(tmp_path / "build")
    assert not (tmp_path / "build").exists()


def test_too_many_files_are_counted_and_not_named_one_by_one(tmp_path: Path) -> None:
    logs = tmp_path / "build/logs"
    logs.mkdir(parents=True)
    for number in range(REMARKS_MAX + 20):
        os.mkfifo(logs / str(number))
    collected = collect(logs, tmp_path / "kept", SIZE_MAX_BYTES)
    assert len(collected) == REMARKS_MAX + 1 and collected[-1] == "20 more are not stored"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_path_is_no_name(tmp_path: Path, name: str) -> None:
    with Directory.at(tmp_path) as here:
        for what in (here.look, here.remove, lambda n: here.read(n, 1), lambda n: here.write(n, b"")):
            with pytest.raises(ValueError, match="not a name"):
                what(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that even root may not change")
def test_read_only_files_are_removed_too(tmp_path: Path) -> None:
    place = tmp_path / "build"
    place.mkdir()
    (place / "file").write_text("x")
    if subprocess.run(["chattr", "+i", place / "file"], capture_output=True).returncode:
        pytest.skip("this file system knows no such flag")
    remove(place)
    assert not place.exists()
