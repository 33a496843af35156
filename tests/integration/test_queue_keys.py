"""Test keys of applications: several at once, with expiry, and replaced at run time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from headgate.base.errors import UserError
from headgate.base.tasks import end
from headgate.cli.queue.serve import KeyFile
from headgate.cli.settings import read
from headgate.queue.server.access import AccessDenied, ApplicationKeys
from headgate.testing.clock import DEADLINE_S
from tests.waiting import nothing_happens, until

LOOK_S = 0.02


def test_two_keys_are_valid_at_the_same_time_and_one_of_them_expires(tmp_path: Path) -> None:
    file = tmp_path / "headgate.conf"
    file.write_text("[application_keys]\nsync = old until=2027-01-01T00:00:00Z\n  new\nmail = other\n")
    settings = read(file, {})
    assert settings.application_keys == {"sync": ["old", "new"], "mail": ["other"]}
    now = datetime(2026, 12, 31, tzinfo=UTC).timestamp()
    keys = ApplicationKeys(settings.application_keys, until=settings.application_keys_until, now_s=lambda: now)
    for key in ("old", "new"):
        keys.caller("sync", f"Application {key}").must_be("sync")
    now += 86_400
    keys.caller("sync", "Application new").must_be("sync")
    with pytest.raises(AccessDenied, match="has expired") as denied:
        keys.caller("sync", "Application old")
    assert denied.value.status == 401


@pytest.mark.parametrize(
    "value", ["until=2027-01-01T00:00:00Z", "key until=soon", "key until=2027-01-01", "key until="]
)
def test_a_time_that_cannot_be_is_an_error_of_the_file(tmp_path: Path, value: str) -> None:
    file = tmp_path / "headgate.conf"
    file.write_text(f"[application_keys]\nsync = {value}\n")
    with pytest.raises(UserError, match=r"\[application_keys\] sync"):
        _ = read(file, {}).application_keys_until


def _is_good(keys: ApplicationKeys, app: str, key: str) -> bool:
    try:
        keys.caller(app, f"Application {key}").must_be(app)
    except AccessDenied:
        return False
    return True


class Followed:
    """Represent a settings file that somebody edits."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.write(text)
        self.file = KeyFile(read(path, {}))

    def write(self, text: str) -> None:
        """Save like editors: the file is a new one afterwards."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    def good(self, app: str, key: str) -> bool:
        return _is_good(self.file.keys, app, key)


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    found = Followed(tmp_path / "headgate.conf", "[application_keys]\nsync = old\n")
    task = asyncio.ensure_future(found.file.watch(LOOK_S))
    yield found
    await end(task)


async def test_a_key_that_is_written_into_the_file_is_good_and_one_taken_out_is_not(followed: Followed) -> None:
    assert followed.good("sync", "old") and not followed.good("sync", "new")
    followed.write("[application_keys]\nsync = old new\nmail = other\n")
    await until("the new key is good", lambda: followed.good("sync", "new"))
    assert followed.good("sync", "old") and followed.good("mail", "other") and not followed.good("mail", "new")
    followed.write("[application_keys]\nsync = new\n")
    await until("the old key is bad", lambda: not followed.good("sync", "old"))
    assert followed.good("sync", "new") and not followed.good("mail", "other")


async def test_a_broken_or_deleted_file_changes_nothing(followed: Followed, caplog: pytest.LogCaptureFixture) -> None:
    followed.write("[application_keys]\nsync = new until=soon\n")
    await until("it is told that it is broken", lambda: "stay in effect" in caplog.text)
    assert "[application_keys] sync" in caplog.text and followed.good("sync", "old")
    followed.path.unlink()
    for _ in range(3):
        followed.file.obey()
        await nothing_happens(
            lambda: not followed.good("sync", "old"), for_s=LOOK_S
        )  # an editor leaves it so for a moment
    followed.write("[application_keys]\nsync = new\n")
    await until("the new key is good", lambda: followed.good("sync", "new"))


@pytest.mark.long
async def test_the_command_reads_its_keys_again_on_a_signal(tmp_path: Path) -> None:
    file = tmp_path / "headgate.conf"
    file.write_text("[application_keys]\nsync = old\n[messages]\nport = 0\n")
    before = file.stat()
    server = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("headgate")), "queue", "serve", "-c", str(file),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert server.stdout is not None and server.stderr is not None
        url = (await server.stdout.readline()).decode().split()[-1].rstrip("/")
        with file.open("r+") as same:  # the same file, size and time: only the signal announces it
            same.write(file.read_text().replace("old", "new"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        server.send_signal(signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_S):
            while b"reloaded the keys of applications" not in await server.stderr.readline():
                pass
        async with aiohttp.ClientSession() as http:
            for key, status in (("old", 401), ("new", 200)):
                async with http.get(url, headers={"Authorization": f"Application {key}"}) as answer:
                    assert (answer.status, json.loads(await answer.text())["status"] == "ok") == (status, status == 200)
    finally:
        server.terminate()
        await server.wait()
