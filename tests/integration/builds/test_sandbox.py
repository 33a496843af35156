"""Test bubblewrap, and the messages where it is missing."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.adapters.process.bounds import machine
from headgate.adapters.process.sandbox import Confined, Paths, Sandbox

from .bench import Bench


async def test_writes_stay_inside(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    outside = tmp_path / "outside"
    run = bench.script("run", f"touch {outside} /etc/headgate-was-here $HEADGATE_VARS/../../x; touch ok && echo inside")
    assert (await bench.build(run=(run,))).result == "SUCCESS"
    assert not outside.exists() and not Path("/etc/headgate-was-here").exists() and "| inside" in bench.log


async def test_the_rest_of_the_machine_is_not_visible(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("treasure")
    bench = Bench(tmp_path, "bwrap")
    run = bench.script("run", f"cat {tmp_path}/secret; ls /root /home /var; cat /proc/1/environ; ps ax | wc -l; true")
    assert (await bench.build(run=(run,))).result == "SUCCESS"
    assert "treasure" not in bench.log and "No such file or directory" in bench.log


async def test_copies_of_settings_are_as_on_the_machine_and_cannot_be_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    copied = machine.copied()
    assert "/etc/host.conf" in copied, "every machine has it"
    changed = "test -w $file || (: >> $file) 2>/dev/null || rm -f $file 2>/dev/null"
    run = bench.script(
        "run", f"for file in {' '.join(copied)}; do sha256sum $file; {changed} && echo changed; done; true"
    )
    assert (await bench.build(run=(run,))).result == "SUCCESS"
    for path, content in copied.items():
        assert f"| {hashlib.sha256(content).hexdigest()}  {path}\n" in bench.log
    assert "| changed" not in bench.log


def test_only_small_files_that_everybody_can_read_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").write_bytes(b"small")
    (tmp_path / "large").write_bytes(b"." * (machine.COPIED_MAX_BYTES + 1))
    (tmp_path / "private").write_bytes(b"for its group")
    (tmp_path / "private").chmod(0o640)
    (tmp_path / "link").symlink_to("private")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    names = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(machine, "SETTINGS", tuple(f"..{tmp_path / name}" for name in [*names, "missing"]))
    assert machine.copied() == {f"/etc/..{tmp_path}/small": b"small"}


async def test_settings_open_paths_to_trusted_and_untrusted_jobs(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # the user of a build owns no files
    bench = Bench(tmp_path, "bwrap", trusted=Paths(writable=(shared,)), untrusted=Paths(readable=(shared,)))
    book = bench.script("run", f"ls -d {shared} && touch {shared}/$ZUUL_EXECUTION_PHASE$1")
    assert (await bench.build(run=(book,))).result == "FAILURE" and not any(shared.iterdir())
    assert (await bench.build(run=(replace(book, trusted=True),))).result == "SUCCESS" and any(shared.iterdir())


def test_without_bubblewrap_one_warning_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        sandbox = Sandbox("auto")
        for _ in range(3):
            assert sandbox.wrap(["/bin/true"], [], [], trusted=False, home="/") == Confined(["/bin/true"])
    assert [r.message for r in caplog.records] == [
        "Jobs run without a sandbox: the program bwrap is not installed; install the package bubblewrap "
        "(apt-get install bubblewrap). They can read and write everything that this user can, and are not isolated "
        "from each other."
    ]


def test_a_broken_bubblewrap_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert not Sandbox("auto").usable
    assert "No permissions to create a new namespace" in caplog.text and "unprivileged user namespaces" in caplog.text
    with pytest.raises(OSError, match=r"sandbox = bwrap, but bwrap does not work here"):
        Sandbox("bwrap")


def test_there_is_no_warning_if_the_sandbox_is_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    assert not Sandbox("none").usable and not caplog.records
