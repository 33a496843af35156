"""Test profiles of the command line: their keys, and values from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.base.errors import UserError
from headgate.cli.apicommands import profile


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "headgate/client.conf"
    path.parent.mkdir()
    return path


def test_a_token_comes_from_the_environment_and_the_file_may_be_read_by_others(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZUUL_TOKEN", "abc")
    file.write_text("[one]\nurl = https://gate.example/\ntenant = t\nauth_token = %(ZUUL_TOKEN)s\n")
    file.chmod(0o644)
    assert profile("one") == ("https://gate.example", "t", "abc", True)


def test_a_variable_that_is_not_set_is_named_and_never_sent_as_a_token(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZUUL_TOKEN", raising=False)
    file.write_text("[one]\nurl = https://gate.example\nauth_token = %(ZUUL_TOKEN)s\n")
    with pytest.raises(UserError, match=r"client\.conf: \[one\] auth_token: the environment variable ZUUL_TOKEN"):
        profile("one")


def test_other_variables_are_refused(file: Path) -> None:
    file.write_text("[one]\nurl = https://gate.example/%(HOME)s\n")
    with pytest.raises(UserError, match=r"only variables whose names begin with ZUUL_ or HEADGATE_"):
        profile("one")


def test_a_missing_variable_of_another_profile_is_not_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZUUL_OTHER", raising=False)
    file.write_text("[one]\nurl = https://one.example\n[two]\nurl = https://two.example\nauth_token = %(ZUUL_OTHER)s\n")
    assert profile("one").url == "https://one.example"


def test_a_written_token_is_hidden_from_others(file: Path) -> None:
    file.write_text("[one]\nurl = https://gate.example\nauth_token = a%%b\n")
    file.chmod(0o600)
    assert profile("one").token == "a%b"
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        profile("one")


def test_an_escaped_token_is_no_reference_to_the_environment(file: Path) -> None:
    file.write_text("[one]\nurl = https://gate.example\nauth_token = %%(ZUUL_TOKEN)s\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        profile("one")


def test_a_certificate_is_not_checked_where_a_profile_says_so(file: Path) -> None:
    file.write_text("[one]\nurl = https://gate.example\nverify_ssl = False\n[two]\nurl = a\nverify_ssl = perhaps\n")
    assert not profile("one").verify
    with pytest.raises(UserError, match=r"\[two\] verify_ssl must be true or false, not perhaps"):
        profile("two")


def test_the_error_about_a_password_says_what_to_do(file: Path) -> None:
    file.write_text("[one]\nurl = https://gate.example\nusername = ann\npassword = p\n")
    with pytest.raises(UserError, match="does not support passwords; set auth_token to a token"):
        profile("one")
