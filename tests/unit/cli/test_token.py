"""Test the operator's token: created once, readable only by its owner."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.identity import pages as module
from headgate.cli.identity.credentials import TokenFile, known_token, operator_token
from headgate.cli.identity.pages import owners, pages, token_for
from headgate.cli.main import group
from headgate.cli.settings import Settings

GOOD = "0123456789abcdef-token"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_processes_that_start_together_have_the_same_token(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "headgate.conf", {})
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: operator_token(settings), range(64)))
    (token,) = found
    assert len(token) > 40 and known_token(settings) == token
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["token"]
    assert mode(tmp_path / "state" / "token") == 0o600 and mode(tmp_path / "state") == 0o700


@pytest.mark.parametrize(
    ("ours", "was", "becomes"), [(True, 0o644, 0o600), (True, 0o640, 0o600), (False, 0o664, 0o640)]
)
def test_a_token_file_that_others_could_read_becomes_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ours: bool, was: int, becomes: int
) -> None:
    path = tmp_path / "token"
    path.write_text(GOOD)
    path.chmod(was)
    assert TokenFile(path, ours).made() == GOOD
    assert mode(path) == becomes and "other users could read or change this file" in caplog.text


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "a\x1btoken of escapes", "ünïcödetökenünïcöde"])
def test_a_file_without_a_valid_token_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    for look in (TokenFile(path, ours=True).made, TokenFile(path, ours=True).read):
        with pytest.raises(UserError, match="one line of at least 16"):
            look()


def test_a_token_path_that_is_not_a_file_is_reported_immediately(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text(GOOD)
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("link", "pipe", "directory"):
        with pytest.raises(UserError, match=name):
            TokenFile(tmp_path / name, ours=True).made()
    assert TokenFile(tmp_path / "link", ours=False).made() == GOOD, "a mounted secret is a link"
    with pytest.raises(UserError, match="cannot be read"):
        TokenFile(tmp_path / "none", ours=False).made()
    assert TokenFile(tmp_path / "none", ours=False).read() == ""


def test_a_token_in_the_settings_wins_and_no_file_is_made(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "headgate.conf", {"web": {"token": GOOD}})
    assert operator_token(settings) == known_token(settings) == GOOD
    assert not (tmp_path / "state").exists()


def test_the_token_goes_where_the_settings_say_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_TOKEN", raising=False)
    conf = tmp_path / "headgate.conf"
    conf.write_text(f"[web]\ntoken = {GOOD}\nroot = https://gate.example\nlisten_address = 10.1.2.3\n")
    for url in (
        "http://127.0.0.1:1",
        "http://localhost:1",
        "http://[::1]:1",
        "https://gate.example",
        "http://10.1.2.3:9",
    ):
        assert pages(str(conf), url).token == GOOD, url
    for url in (
        "http://evil.example",
        "http://127.0.0.1.evil.example",
        "https://gate.example.evil",
        "http://10.1.2.4:9",
    ):
        assert pages(str(conf), url).token == "", url
    monkeypatch.setenv("HEADGATE_TOKEN", "of-the-environment")
    assert pages(str(conf), "http://elsewhere.example").token == "of-the-environment"


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def test_the_owner_of_a_listening_program_is_read_from_the_kernel(tmp_path: Path) -> None:
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    rest = "00000000:00000000 00:00000000 00000000"
    four.write_text(
        f"{HEAD}   0: 0100007F:2328 00000000:0000 0A {rest}  1001        0 1\n"
        f"   1: 0100007F:2328 0100007F:9999 01 {rest}  1002        0 2\n"
        f"   2: 00000000:2329 00000000:0000 0A {rest}  1003        0 3\n"
    )
    six.write_text(f"{HEAD}   0: {'0' * 32}:2328 {'0' * 32}:0000 0A {rest}  1004        0 4\n")
    tables = (str(four), str(six), str(tmp_path / "none"))
    assert owners(9000, tables) == {1001, 1004}
    assert owners(9001, tables) == {1003}
    assert owners(9002, tables) == set()


STRANGER = 4_000_000_000


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write settings of a Headgate on whose ports a program of another user listens."""
    monkeypatch.delenv("HEADGATE_TOKEN", raising=False)
    monkeypatch.setattr(module, "owners", lambda port: {STRANGER})
    path = tmp_path / "headgate.conf"
    path.write_text("[web]\nport = 1\n")
    return path


def test_a_token_of_the_environment_goes_to_no_stranger_at_a_guessed_address(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", GOOD)
    with pytest.raises(UserError, match=f"id {STRANGER}.*did not send your token"):
        pages(str(conf), None)
    with pytest.raises(UserError, match="did not send your token"):
        token_for("127.0.0.1", 1, str(conf), guessed=True)
    assert pages(str(conf), "http://127.0.0.1:1").token == token_for("127.0.0.1", 1, str(conf)) == GOOD, "it is named"


def test_a_token_of_the_command_line_goes_to_no_stranger_at_a_guessed_address(conf: Path) -> None:
    with click.Context(group) as context:
        context.params = {"auth_token": GOOD}
        with pytest.raises(UserError, match="did not send your token"):
            pages(str(conf), None)
        assert pages(str(conf), "http://127.0.0.1:1").token == GOOD, "it is named"


def test_a_stranger_who_says_to_be_alive_keeps_nobody_from_the_public_address(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", GOOD)
    monkeypatch.setattr(module, "_alive", lambda base, settings: True)
    conf.write_text("[web]\nport = 1\nroot = https://gate.example\n")
    found = pages(str(conf), None)
    assert (found.base, found.token) == ("https://gate.example", GOOD)
    monkeypatch.setattr(module, "owners", lambda port: {os.geteuid()})
    assert pages(str(conf), None).base == "http://127.0.0.1:1"


def test_the_inventory_s_commands_show_no_token_to_a_stranger_at_the_usual_address(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNM_HOST", raising=False)
    monkeypatch.setenv("HEADGATE_CONFIG", str(conf))
    result = CliRunner().invoke(group, ["inventory", "--token", GOOD, "partition", "list"])
    assert isinstance(result.exception, UserError) and "did not send your token" in str(result.exception)
