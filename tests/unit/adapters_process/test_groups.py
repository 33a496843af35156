"""Test where control groups are created, on imitated kernel file systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.adapters.process.bounds.limits import Exceeded, Group, Groups, ProcessBounds
from headgate.adapters.process.bounds.watch import CommandWatch, DiskAccounts

NAME = f"headgate-{os.getpid()}-"
OTHER_PID = "1"


def group(at: Path, *, procs: str = "", controllers: str = "cpu memory pids", handed_down: str = "") -> None:
    at.mkdir(parents=True, exist_ok=True)
    (at / "cgroup.procs").write_text(procs)
    (at / "cgroup.controllers").write_text(controllers)
    (at / "cgroup.subtree_control").write_text(handed_down)


def mount(kind: str, at: Path, options: str = "rw", root: str = "/") -> str:
    return f"30 24 0:26 {root} {at} rw,nosuid shared:4 - {kind} {kind} {options}"


def test_a_unit_of_its_own_is_divided(tmp_path: Path) -> None:
    mine = tmp_path / "system.slice/gate.service"
    group(mine, procs=f"{os.getpid()}\n")
    found = Groups.found([mount("cgroup2", tmp_path)], ["0::/system.slice/gate.service"])
    assert (mine / "headgate").is_dir(), "where its own processes go"
    assert set((mine / "cgroup.subtree_control").read_text().split()) == {"+memory", "+pids", "+cpu"}
    assert not found.parents, "the kernel has not answered that it is so"


def test_the_nearest_that_hands_controllers_down_is_used(tmp_path: Path) -> None:
    group(tmp_path, handed_down="memory pids")
    group(tmp_path / "user.slice", procs=OTHER_PID, handed_down="memory pids cpu")
    group(tmp_path / "user.slice/session", procs=f"{os.getpid()}\n{OTHER_PID}\n")
    found = Groups.found([mount("cgroup2", tmp_path)], ["0::/user.slice/session"])
    assert found.complete
    (made,) = set(found.parents.values())
    assert made.parent == tmp_path / "user.slice" and made.name.startswith(NAME)
    assert not (tmp_path / "user.slice/session/headgate").exists(), "it is not ours alone"
    found.close()
    assert not made.exists()


def test_controllers_of_version_1_are_looked_for_each_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "memory/box").mkdir(parents=True)
    (tmp_path / "memory/box/cgroup.procs").touch()
    group(tmp_path / "pids")
    mounts = [
        mount("cgroup", tmp_path / "memory", "rw,memory", root="/container"),
        mount("cgroup", tmp_path / "pids", "rw,pids"),
        mount("cgroup2", tmp_path / "unified"),
    ]
    found = Groups.found(mounts, ["4:memory:/container/box", "8:pids:/", "0::/"])
    name = found.parents["pids"].name
    assert name.startswith(NAME)
    assert found.parents == {"memory": tmp_path / "memory/box" / name, "pids": tmp_path / "pids" / name}
    made = found.make("build", ProcessBounds())
    assert made is not None and len(made.directories) == 2


def test_nothing_is_made_where_nothing_can_be(tmp_path: Path) -> None:
    assert Groups.found([], []).make("build", ProcessBounds()) is None and not Groups.found([], []).complete


def test_groups_of_the_dead_are_removed(tmp_path: Path) -> None:
    group(tmp_path, handed_down="cpu memory pids")
    (tmp_path / "headgate-99999999/build-1").mkdir(parents=True)
    (tmp_path / f"headgate-{OTHER_PID}/build-1").mkdir(parents=True)
    (tmp_path / f"headgate-{os.getpid()}-gone/build-1").mkdir(parents=True)
    living = Groups.found([mount("cgroup2", tmp_path)], ["0::/"]).parents["pids"]
    (living / "build-1").mkdir()
    assert not (tmp_path / "headgate-99999999").exists() and (tmp_path / f"headgate-{OTHER_PID}/build-1").exists()
    assert not (tmp_path / f"headgate-{os.getpid()}-gone").exists(), "nobody holds it, whoever has that number now"
    Groups.found([mount("cgroup2", tmp_path)], ["0::/"])
    assert (living / "build-1").exists(), "it is held"


def test_actions_of_the_kernel_are_reported(tmp_path: Path) -> None:
    one = Group({"memory": tmp_path, "pids": tmp_path}, ProcessBounds(memory_max_bytes=8_000_000_000, processes_max=9))
    assert one.refused() is None and not one.crowded() and not one.starved()
    (tmp_path / "pids.events").write_text("max 3\n")
    (tmp_path / "pids.current").write_text("9\n")
    assert one.refused() == 3 and one.crowded() and not one.starved()
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 8\noom 1\noom_kill 1\n")
    assert one.starved() == "memory limit of 8 GB reached"
    (tmp_path / "memory.events").unlink()
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert one.starved()


@pytest.mark.parametrize("counts", [True, False])
def test_a_failure_after_refused_forks_says_so_also_where_the_kernel_does_not_count_them(
    tmp_path: Path, counts: bool
) -> None:
    bounds, messages = ProcessBounds(processes_max=9), list[str]()
    group = Group({"memory": tmp_path, "pids": tmp_path}, bounds)
    watch = CommandWatch(bounds, tmp_path, group, DiskAccounts(bounds), tuple, messages.append)
    (tmp_path / "pids.current").write_text("8\n")
    if counts:
        (tmp_path / "pids.events").write_text("max 0\n")
    watch.check(1)
    assert not messages
    if counts:
        (tmp_path / "pids.events").write_text("max 1\n")
    else:
        (tmp_path / "pids.current").write_text("9\n")
    watch.check(0)
    watch.check("cancel")
    assert messages == ["limit of 9 processes reached: the build cannot start another process"]
    (tmp_path / "pids.current").write_text("1\n")
    for status in (1, "timeout"):
        with pytest.raises(Exceeded, match=r"^limit of 9 processes reached$"):
            watch.check(status)
