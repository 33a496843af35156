"""The settings file: what is wrong is said with file, line, and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.init import command as init
from headgate.cli.settings import find, read


def settings(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "headgate.conf"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[schedular]\n", r"headgate.conf:1: unknown section \[schedular\]; did you mean 'scheduler'"),
        ("[web]\nport = 1\nporte = 9000\n", r"headgate.conf:3: unknown option 'porte' in \[web\]; did you mean 'port'"),
        ("[web]\nport = many\n", r"headgate.conf:2: port must be a number, not 'many'"),
        ("[executor]\nsandbox = maybe\n", r"headgate.conf:2: sandbox must be one of auto, bwrap, none"),
        ("[connection x]\ndriver = git\n", r"\[connection x\] needs a baseurl"),
        ("port = 1\n", r"this is no settings file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(settings(tmp_path, text))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = read(settings(tmp_path, "[scheduler]\nstate_dir = here\n"))
    assert found.store_url == f"sqlite:///{tmp_path}/here/headgate.sqlite"
    assert found.tenant_config == tmp_path / "tenants.yaml"


def test_without_settings_three_lines_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        find(None, {})
    assert len(str(caught.value).splitlines()) == 3 and "headgate init" in str(caught.value)


def test_the_example_is_valid_and_never_overwritten(tmp_path: Path) -> None:
    assert CliRunner().invoke(init, [str(tmp_path)]).exit_code == 0
    assert read(tmp_path / "headgate.conf").connections["local"]["baseurl"] == "repositories"
    again = CliRunner().invoke(init, [str(tmp_path)])
    assert isinstance(again.exception, UserError) and "nothing was written" in str(again.exception)
