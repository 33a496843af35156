"""Test the key that a message server creates: once, completely, and never empty."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.base.errors import UserError
from headgate.cli.queue.serve import own_key
from headgate.queue.server.access import AccessDenied, ApplicationKeys


def test_all_that_start_at_once_have_the_same_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: own_key(tmp_path / "state", "queuey"), range(64)))
    (key,) = found
    path = tmp_path / "state" / "messages.key"
    assert len(key) >= 40 and path.read_text() == f"{key}\n"
    assert os.listdir(tmp_path / "state") == ["messages.key"] and stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "\n", "short"])
def test_a_file_without_a_complete_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "messages.key").write_text(text)
    with pytest.raises(UserError, match=r"messages\.key: the server's own key must be one line of at least 16"):
        own_key(tmp_path, "queuey")


@pytest.mark.parametrize("header", ["Application", "Application ", "Bearer", "application\t"])
def test_nobody_proves_anything_with_an_empty_key(header: str) -> None:
    keys = ApplicationKeys({"queuey": ["", "a-key"]})
    with pytest.raises(AccessDenied) as denied:
        keys.somebody(header)
    assert denied.value.status == 401
