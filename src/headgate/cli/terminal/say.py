"""Print text that may contain untrusted names and messages; all commands print with `say`."""

from __future__ import annotations

import re
import secrets
import sys
from typing import IO, Any

import click

from headgate.base.texts import visible

# If untrusted text could contain the marks, it could colour, hide or forge output.
_NONCE = secrets.token_hex(8)
"""Random part of the marks, which untrusted text cannot guess."""
_MARK = re.compile(f"\ue000{_NONCE}((?:\x1b\\[[0-9;]*m)*)\ue001")


def style(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """Return `text` with marks that make `say` print it in the colour `fg`, bold or dim."""
    # Let click choose the codes: styling a NUL shows which codes come before and after the text.
    before, _, after = click.style("\0", fg=fg, bold=bold or None, dim=dim or None).partition("\0")
    return f"{_marked(before)}{text}{_marked(after)}"


def say(text: str = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print lines of text; if the output is a terminal, with their styles.

    `visible` escapes or removes control characters (except line breaks and tabs), direction marks and escape
    sequences, so that untrusted names cannot control the reader's terminal.
    """
    pieces = _MARK.split(text)
    # Even pieces are text; odd pieces are codes, which only `style` can have inserted.
    pieces[::2] = map(visible, pieces[::2])
    click.echo("".join(pieces), file=file, err=err, nl=nl)


def unstyled(text: str) -> str:
    """Return `text` without the marks of its styles, for output elsewhere than in a terminal."""
    return _MARK.sub("", text)


def pass_on(text: str) -> None:
    """Print `text` unchanged for another program; if standard output is a terminal, print it like `say`."""
    if sys.stdout.isatty():
        say(text, nl=False)
    else:
        sys.stdout.write(text)


def _marked(codes: str) -> str:
    return f"\ue000{_NONCE}{codes}\ue001"
