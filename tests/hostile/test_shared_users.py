"""Test that no other user of the machine can become the users of builds: the kernel lets people become each of their
subordinate users."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.adapters.process.confinement import users

POSTINST = Path(__file__).parents[2] / "packaging/debian/postinst"


@pytest.fixture
def assigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    files = tmp_path / "subuid", tmp_path / "subgid"
    for file in files:
        file.write_text("ann:100000:65536\nbob:165536:65536\n\n# no line\neve:x:1\n")
    monkeypatch.setattr(users, "SUBORDINATE", files)
    return files


@pytest.mark.parametrize(
    ("numbers", "others"),
    [
        (users.Numbers(200_000, 65_536), "bob"),
        (users.Numbers(100_000, 65_537), "ann, bob"),
        (users.Numbers(231_071, 1), "bob"),
        (users.Numbers(231_072, 65_536), ""),
        (users.Numbers(99_999, 1), ""),
        (users.Numbers(300_000, 10, 165_530), "ann, bob"),
        (users.DEFAULT, ""),
    ],
)
def test_people_who_share_the_users_of_builds_are_named(
    assigned: tuple[Path, Path], numbers: users.Numbers, others: str
) -> None:
    found = users.shared(numbers)
    assert [text.partition(" can read and stop builds")[0] for text in found] == ([others] if others else [])
    assert all(text.endswith("free numbers begin at 231072") for text in found)


def test_the_numbers_of_this_user_are_shared_with_nobody(assigned: tuple[Path, Path]) -> None:
    for file in assigned:
        file.write_text(f"{os.geteuid()}:400000:65536\n")
    assert users.shared(users.Numbers(400_000, 65_536)) == []


def test_the_advice_names_numbers_that_nobody_has(assigned: tuple[Path, Path]) -> None:
    assert users.addition(os.geteuid()).startswith("usermod --add-subuids 231072-296607 --add-subgids 231072-296607 ")
    for file in assigned:
        file.unlink()
    assert "--add-subuids 100000-165535 " in users.addition(os.geteuid())


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("useradd"), reason="adds users below a directory")
def test_the_debian_package_takes_numbers_that_nobody_has(tmp_path: Path) -> None:
    etc, programs = tmp_path / "etc", tmp_path / "bin"
    for directory in (etc, programs, tmp_path / "home", tmp_path / "var/lib"):
        directory.mkdir(parents=True)
    (etc / "login.defs").write_text("SUB_UID_MIN 100000\nSUB_UID_MAX 600100000\nSUB_UID_COUNT 65536\n")
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (etc / "group").write_text("root:x:0:\n")
    for name in ("shadow", "gshadow", "subuid", "subgid"):
        (etc / name).touch()
    real = {name: shutil.which(name) for name in ("useradd", "usermod")}
    for name, program in real.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {program} --prefix {tmp_path} "$@"\n')
    # What else the script does is for the whole machine.
    for name in ("getent", "chown", "chmod", "systemctl"):
        (programs / name).write_text("#!/bin/sh\ntest $(basename $0) != getent\n")
    for program_file in programs.iterdir():
        program_file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for command in (["useradd", "ann"], ["useradd", "bob"], ["sh", "-e", str(POSTINST), "configure"]):
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=tmp_path)
    for name in ("subuid", "subgid"):
        lines = (etc / name).read_text().splitlines()
        found = users.subordinate(lines, {"headgate"})
        assert found is not None and found.count >= 65_536
        assert users.sharing(lines, {"headgate"}, found.first, found.count) == []
