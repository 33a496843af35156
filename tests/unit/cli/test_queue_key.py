"""Test the key that a message server creates, once and never empty, and that commands name the settings they use."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.queue import serve
from headgate.cli.queue.queue import command as queue
from headgate.cli.queue.serve import own_key
from headgate.cli.settings import Settings
from headgate.queue.server.access import AccessDenied, ApplicationKeys
from headgate.testing.servers.program import free_ports


def test_servers_that_start_together_have_the_same_key(tmp_path: Path) -> None:
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
def test_an_empty_key_grants_no_access(header: str) -> None:
    keys = ApplicationKeys({"queuey": ["", "a-key"]})
    with pytest.raises(AccessDenied) as denied:
        keys.somebody(header)
    assert denied.value.status == 401


def test_the_server_names_the_settings_that_it_found_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(url: str, _: object, settings: Settings, *more: object) -> None:
        ran.append(settings.path.absolute())

    ran, below = list[Path](), tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    monkeypatch.setattr(serve, "run", run)
    monkeypatch.setattr(serve, "set_up", lambda: None)
    caplog.set_level("INFO")
    CliRunner().invoke(serve.serve, [], catch_exceptions=False)
    assert ran == [below / "headgate.conf"] and "settings:" not in caplog.text, "there is none"
    (tmp_path / "headgate.conf").write_text("[messages]\nport = 0\n")
    CliRunner().invoke(serve.serve, [], catch_exceptions=False)
    assert ran[1] == tmp_path / "headgate.conf" and f"settings: {ran[1]}" in caplog.text


def test_a_command_names_the_settings_whose_token_it_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,), below = free_ports(1), tmp_path / "below"
    (below / "etc").mkdir(parents=True)
    (below / "etc/qdo-worker.conf").write_text(f"[queuey]\nconnection = http://127.0.0.1:{port}/v1/queuey/\n")
    monkeypatch.chdir(below)
    (tmp_path / "headgate.conf").write_text(f"[web]\ntoken = {'t' * 40}\n")
    found = CliRunner().invoke(queue, ["list"]).exception
    assert isinstance(found, UserError) and str(tmp_path / "headgate.conf") in str(found)
    monkeypatch.setenv("HEADGATE_TOKEN", "t" * 40)
    found = CliRunner().invoke(queue, ["list"]).exception
    assert isinstance(found, UserError) and "that of HEADGATE_TOKEN" in str(found)
