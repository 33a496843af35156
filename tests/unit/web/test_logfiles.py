"""Test the list of files that any build left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.rest import NotFoundException
from headgate.web import logfiles
from headgate.web.logfiles import FILES_MAX, inside, listed


@pytest.mark.heavy
async def test_a_list_has_an_end_and_follows_no_link(tmp_path: Path) -> None:
    root, secret = tmp_path / "build", tmp_path / "secret"
    root.mkdir()
    secret.write_text("secret")
    (root / "link").symlink_to(secret)
    (root / "around").symlink_to(root)
    os.mkfifo(root / "pipe")
    (root / "kept").write_text("x")
    deep = root
    for _ in range(50):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "deepest").write_text("x")
    (Path(os.fsdecode(os.fsencode(root) + b"/odd\xff"))).write_text("x")
    found = [file.path for file in await listed(root, "/logs")]
    assert found == ["d/" * 50 + "deepest", "kept", "odd?"]
    many = root / "many"
    many.mkdir()
    for n in range(3 * FILES_MAX):
        (many / f"{n:06}").touch()
    assert len(await listed(root, "/logs")) == FILES_MAX


async def test_files_removed_during_a_listing_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "kept"):
        (tmp_path / name).touch()

    def quoted(name: str) -> str:
        (tmp_path / "kept").unlink()  # old ones go, one by one
        return name

    monkeypatch.setattr(logfiles, "quote", quoted)
    assert [file.path for file in await listed(tmp_path, "/logs")] == ["gone"]


@pytest.mark.parametrize(
    "name", ["link", "around/../../secret", "../secret", "x" * 5_000, "a\x00b", "circle", "pipe", ""]
)
def test_a_file_is_one_of_the_build(tmp_path: Path, name: str) -> None:
    root = tmp_path / "build"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "around").symlink_to(tmp_path)
    (root / "circle").symlink_to(root / "circle")
    os.mkfifo(root / "pipe")
    with pytest.raises(NotFoundException):
        inside(root, name)
