"""Test the output of commands."""

from __future__ import annotations

from io import StringIO

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.terminal.say import pass_on, say, style

EVIL = "a\x1b[2Jb\x1b]0;owned\x07c\rd\u202ee\x9bf\x00"


def printed(text: str, *, color: bool = True) -> str:
    """Return what `say` sends to a terminal (`color`), or to a file."""

    @click.command()
    def command() -> None:
        say(text, nl=False)

    return CliRunner().invoke(command, color=color).stdout


def test_foreign_text_neither_moves_the_cursor_nor_hides_output() -> None:
    assert printed(f"topic {EVIL}\n  at\tonce") == "topic abc\\rd\\u202ee\\x9bf\\x00\n  at\tonce"


def test_styles_are_those_of_the_command_alone() -> None:
    text = f"{style('no', fg='red', bold=True)} {style(EVIL, dim=True)} {EVIL}"
    assert printed(text).count("\x1b") == 5 and printed(text).startswith("\x1b[31m\x1b[1mno\x1b[0m \x1b[2mabc\\r")
    assert "\x1b" not in printed(text, color=False)


@given(st.text(alphabet=st.sampled_from("\x1b[]0m;\ue000\ue001ab\r\n\x9b"), max_size=40))
def test_no_text_makes_itself_a_style(text: str) -> None:
    found = printed(text)
    assert "\x1b" not in found and "\r" not in found and "\x9b" not in found


@pytest.mark.parametrize("text", ["", "plain", "größer ☃", "two\nlines\n"])
def test_text_without_tricks_is_itself(text: str) -> None:
    assert printed(text) == text


def test_a_program_receives_text_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    pass_on(EVIL)
    assert capsys.readouterr().out == EVIL


def test_text_on_a_terminal_has_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out = StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]  # as a terminal is
    monkeypatch.setattr("sys.stdout", out)
    pass_on(EVIL)
    assert out.getvalue() == "abc\\rd\\u202ee\\x9bf\\x00"
