"""Test what jobs leave for the log store and its readers: links, names, floods, and active pages."""

from __future__ import annotations

import gzip
import os
import socket
from pathlib import Path

import pytest

from headgate.adapters.logs import local
from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.logs.manifests import MEMBER_SIZE_BYTES, Manifest, OutputPart, StoredFile, file_key, part_key
from headgate.adapters.logs.reader import Content, StoredLogs
from headgate.adapters.logs.upload import Uploads
from headgate.ports.logstore import LogStoreError
from headgate.testing.logstores import keys, pieces, read_all
from headgate.web.logfiles import served

SECRET = "of another build"


def left(root: Path, secret: Path) -> None:
    """Files that no honest job leaves."""
    root.mkdir(parents=True)
    (root / "job-output.txt").write_text("all is well\n")
    (root / "link").symlink_to(secret)
    (root / "links").symlink_to(secret.parent)
    (root / "up").symlink_to("../../..")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
    for name in (b"a\nb", b"\xe2\x80\xaetxt.exe", b"\xff\xfe", b"back\\slash", b"x" * 252):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("odd")
    deep = root
    for _ in range(60):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "deepest").write_text("deep")
    (root / "_builds").mkdir()
    (root / "_builds/b2.json").write_text("{}")
    (root / "many").mkdir()
    for number in range(80):
        (root / f"many/{number:03}").write_text("x")


async def test_nothing_that_a_job_leaves_leads_out_of_its_logs_or_keeps_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "FILES_MAX", 50)
    secret, store = tmp_path / "theirs/secret", LogDirectory(tmp_path / "kept")
    secret.parent.mkdir()
    secret.write_text(SECRET)
    left(tmp_path / "logs/b1", secret)
    uploads = Uploads(LocalLogs(tmp_path / "logs"), store, lambda: 1, host="e", interval_s=3_600)
    for build in ("b1", "b2"):
        async with uploads.following(build):
            (tmp_path / "logs" / build / "job-output.txt").write_text("all is well\n")
    await uploads.close()
    found = await StoredLogs(store).of("b1")
    assert found is not None and found.complete and len(found.files) == 50 and found.file("job-output.txt") is not None
    stored = await keys(store)
    assert not [key for key in stored if SECRET.encode() in await read_all(store, key)]
    assert {key.split("/")[0] for key in stored} == {"b1", "b2", "_builds"} and "b1/_builds/b2.json" in stored
    lost = "\n".join(found.lost)
    for what in (
        "link is not stored: it is a symbolic link",
        "pipe is not stored: it is a FIFO",
        "a\\nb is not stored: its name",
        "socket is not stored",
        "directories deep",
        "there are more than 50 files",
    ):
        assert what in lost, lost
    assert "\u202e" not in lost and lost.count("\n") < 200
    neighbour = await StoredLogs(store).of("b2")
    assert neighbour is not None and [file.path for file in neighbour.files] == ["job-output.txt"]


@pytest.mark.parametrize(
    "kind", ["text/html; charset=utf-8", "image/svg+xml", "application/xml", "text/javascript; charset=utf-8", "x/y"]
)
async def test_a_page_that_a_job_made_is_shown_and_does_nothing(kind: str) -> None:
    """It runs no script, has no origin, and no page of ours can be made to run it."""
    name = 'a"\r\nSet-Cookie: x=1/..;evil\u202e.html'
    content = Content(4, kind, "tag", lambda start, end: pieces(b"evil"[start:end]))
    headers = (await served(content, name, {})).headers
    policy = headers["Content-Security-Policy"]
    assert "sandbox;" in f"{policy};" and "allow-" not in policy and "default-src 'none'" in policy
    assert "script-src" not in policy and "unsafe-eval" not in policy
    if kind.startswith("text/javascript"):  # with nosniff, no browser runs it
        assert (await served(content, name, {})).media_type == "text/plain"
    header = headers["Content-Disposition"]
    assert header.isascii() and header.isprintable() and '"' not in header and header.count(";") == 1


async def test_a_piece_of_a_store_takes_the_memory_that_its_record_says(tmp_path: Path) -> None:
    """Anybody who can write to the store, or a failing disk, can store data that unpacks to a thousand times its
    size."""
    store, bomb = LogDirectory(tmp_path), gzip.compress(bytes(50_000_000), 9, mtime=0)
    logs = StoredLogs(store)
    parts = Manifest("b1", 1, parts=(OutputPart(10, len(bomb)),))
    file = StoredFile("x.txt", MEMBER_SIZE_BYTES, "text/plain", "", (len(bomb),))
    for key in (part_key("b1", 0), file_key("b1", "x.txt")):
        await store.put(key, pieces(bomb), kind="text/plain")
    for manifest, path in ((parts, "job-output.txt"), (Manifest("b1", 1, complete=True, files=(file,)), "x.txt")):
        content = logs.file(manifest, path)
        assert content is not None
        with pytest.raises(LogStoreError, match="a piece does not have its"):
            [piece async for piece in content.read(0, 5)]
