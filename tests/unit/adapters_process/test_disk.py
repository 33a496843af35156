"""Test the accounts of builds' disk usage, on a simulated disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.adapters.process.bounds import watch
from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.bounds.watch import ANYWAY_S, SETTLE_S, DiskAccounts, Free, Use, measured

MB = 1_000_000


class Machine:
    """Simulate a disk of 100 GB with the usage of builds, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bounds: ProcessBounds) -> None:
        self.free, self.now_s, self.held = 50_000 * MB, 0.0, dict[Path, Use]()
        self.measured = 0
        monkeypatch.setattr(watch, "free_of", lambda _: Free(self.free, 1_000_000, 100_000 * MB, 2_000_000))
        monkeypatch.setattr(watch, "measured", self._measured)
        self.disk = DiskAccounts(bounds, now_s=lambda: self.now_s)

    def _measured(self, root: Path, _: object) -> Use:
        self.measured += 1
        return self.held.get(root, Use())

    async def look(self, root: Path) -> str:
        self.now_s += 0.5
        return await self.disk.look(root, lambda: ())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    yield Machine(monkeypatch, ProcessBounds(disk_max_bytes=1_000 * MB, files_max=1_000, reserve_bytes=2_000 * MB))


ONE, TWO = Path("one"), Path("two")


async def test_nothing_is_measured_while_nothing_is_written(machine: Machine) -> None:
    for _ in range(20):
        assert await machine.look(ONE) == ""
    assert machine.measured == 0
    machine.now_s += ANYWAY_S
    assert await machine.look(ONE) == "" and machine.measured == 1


async def test_growth_is_measured_and_reported(machine: Machine) -> None:
    assert await machine.look(ONE) == ""
    machine.free -= 30 * MB
    machine.held[ONE] = Use(30 * MB, 10)
    assert await machine.look(ONE) == "" and machine.measured == 1
    machine.free -= 980 * MB
    machine.held[ONE] = Use(1_001 * MB, 10)
    assert await machine.look(ONE) == "disk limit of 1 GB reached"
    machine.held[ONE] = Use(MB, 1_001)
    machine.free -= 980 * MB
    assert await machine.look(ONE) == "limit of 1000 files reached"


async def test_of_a_disk_that_is_nearly_full_the_largest_leaves_and_one_at_a_time(machine: Machine) -> None:
    machine.held = {ONE: Use(600 * MB, 10), TWO: Use(900 * MB, 10)}
    for root in (ONE, TWO):
        assert await machine.look(root) == ""
    machine.free = 1_000 * MB
    for root in (ONE, TWO):
        assert await machine.look(root) == "", "a moment may be by chance"
    assert await machine.look(ONE) == ""
    with pytest.raises(OSError, match="No space left on device") as raised:
        await machine.look(TWO)
    assert raised.value.errno == errno.ENOSPC and "uses the most of it, 900 MB" in raised.value.filename
    machine.disk.forget(TWO)
    assert await machine.look(ONE) == "", "the space is about to be free"
    machine.now_s += SETTLE_S
    with pytest.raises(OSError, match="No space"):
        await machine.look(ONE)


async def test_simultaneous_disk_checks_of_two_commands_do_not_count_as_two_in_a_row(machine: Machine) -> None:
    machine.held, machine.free = {ONE: Use(900 * MB, 10)}, 1_000 * MB
    for _ in range(2):
        machine.disk.begin(ONE)
    assert await machine.look(ONE) == ""
    machine.now_s -= 0.4
    assert await machine.look(ONE) == ""
    with pytest.raises(OSError, match="No space"):
        await machine.look(ONE)


async def test_the_account_of_a_build_is_closed_with_its_last_command(machine: Machine) -> None:
    machine.held, machine.free = {ONE: Use(900 * MB, 10)}, 1_000 * MB
    for _ in range(2):
        machine.disk.begin(ONE)
    assert await machine.look(ONE) == ""
    machine.disk.forget(ONE)
    with pytest.raises(OSError, match="No space"):
        await machine.look(ONE)
    machine.disk.forget(ONE)
    assert await machine.look(ONE) == ""


async def test_a_build_that_uses_little_of_a_full_disk_is_not_ended(machine: Machine) -> None:
    machine.held, machine.free = {ONE: Use(10 * MB, 10)}, 0
    for _ in range(10):
        assert await machine.look(ONE) == ""


async def test_hidden_disk_usage_is_found_by_the_bytes_written(machine: Machine) -> None:
    machine.held, machine.free = {ONE: Use(10 * MB, 10, 20 * MB), TWO: Use(MB, 1, 60_000 * MB)}, 0
    for _ in range(2):
        for root in (ONE, TWO):
            if root == TWO and _ == 1:
                with pytest.raises(OSError, match="No space"):
                    await machine.look(root)
            else:
                assert await machine.look(root) == ""


def test_links_deep_directories_and_deleted_files_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 2 * MB)
    os.link(tmp_path / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):  # deeper than a path may be long
        os.mkdir("d" * 200, dir_fd=place)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    with open(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=place), "wb") as file:
        file.write(b"x" * MB)
    os.close(place)
    plain = measured(tmp_path, [])
    assert 3 * MB <= plain.size_bytes < 4 * MB and plain.files == 64
    with tempfile.TemporaryFile(dir=tmp_path) as held:
        held.write(b"x" * 3 * MB)
        held.flush()
        found = measured(tmp_path, [os.getpid()])
    assert 6 * MB <= found.size_bytes < 7 * MB and found.written_bytes > 0
