"""Print text for people, which may hold names and messages of anybody: commands print with `say` alone."""

from __future__ import annotations

import re
import secrets
import sys
from typing import IO, Any

import click

from headgate.base.texts import visible

# Otherwise a name from outside could contain the marks, and colour, hide or forge what is printed.
_NONCE = secrets.token_hex(8)
"""Random part of the marks: text from elsewhere cannot contain it, so it has no style."""
_MARK = re.compile(f"\ue000{_NONCE}((?:\x1b\\[[0-9;]*m)*)\ue001")


def style(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """Return `text` for `say`, in the colour `fg`, bold or dim; control characters in it are shown as escapes."""
    # click decides about codes; a text between NULs shows which ones come before and after.
    before, _, after = click.style("\0", fg=fg, bold=bold or None, dim=dim or None).partition("\0")
    return f"{_marked(before)}{text}{_marked(after)}"


def say(text: str = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print lines of text, in their styles where the output is a terminal.

    Control characters other than line breaks and tabs, marks of direction and escape sequences are shown as escapes
    or left out (`visible`): whoever chooses a name does not write to the terminal of who reads it.
    """
    pieces = _MARK.split(text)
    # Even pieces are text, odd ones the codes between them, which only `style` can have made.
    pieces[::2] = map(visible, pieces[::2])
    click.echo("".join(pieces), file=file, err=err, nl=nl)


def unstyled(text: str) -> str:
    """Return `text` without its styles, for people who read it elsewhere than in a terminal."""
    return _MARK.sub("", text)


def pass_on(text: str) -> None:
    """Print `text` for another program exactly as it is; where people read it, as `say` does."""
    if sys.stdout.isatty():
        say(text, nl=False)
    else:
        sys.stdout.write(text)


def _marked(codes: str) -> str:
    return f"\ue000{_NONCE}{codes}\ue001"
