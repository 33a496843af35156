"""Define groups of commands that import a command when it is used and correct misspelt ones; name the program."""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from headgate.base.errors import MissingPackage, needing

NAME = "headgate"
SUMMARY_MAX_CHARS = 200
"""Length limit of a command's summary in the help of its group."""


def own_command(*, elsewhere: bool = False) -> str:
    """Return `headgate` if the shell finds this installation by that name, and otherwise its path as the user gave it,
    quoted. With `elsewhere`, the path is also valid in other directories."""
    # An installation in a directory outside of PATH, as `make demo` makes it, is started by its path.
    typed = sys.argv[0]
    if os.path.basename(typed) != NAME or os.sep not in typed or not os.path.exists(typed):
        return NAME
    found = shutil.which(NAME)
    if found and os.path.samefile(typed, found):
        return NAME
    return shlex.quote(os.path.abspath(typed) if elsewhere else typed)


class CommandGroup(click.Group):
    """Show the whole first sentence about each command: click cuts it where the line ends."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; `help COMMAND` is the same as `COMMAND --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of the commands and their summaries, on as many lines as they need."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(SUMMARY_MAX_CHARS)) for name, one in found if one and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(CommandGroup):
    """Import the module of a command in `later` when the command is used."""

    later: ClassVar[Mapping[str, str]] = {}
    """Name of a command -> its place, `module:attribute`."""
    extras: ClassVar[Mapping[str, str]] = {}
    """Name of a command -> the extra of Headgate that it needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, imported or not, in alphabetical order."""
        return sorted([*super().list_commands(ctx), *self.later])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, importing its module first, or None if there is none. If its packages are
        not installed, return a command that fails with the name of the extra to install."""
        if cmd_name not in self.later:
            return super().get_command(ctx, cmd_name)
        module, name = self.later[cmd_name].split(":")
        if cmd_name not in self.extras:
            found = _imported(module, name)
        else:
            try:
                with needing(f"{ctx.command_path} {cmd_name}", self.extras[cmd_name]):
                    found = _imported(module, name)
            except MissingPackage as missing:
                found = _missing(cmd_name, missing)
        assert isinstance(found, click.Command), "the table names commands"
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with. Raise NoSuchCommand, which suggests names with a similar
        spelling."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            # click itself suggests only from `commands`, which lack those that are imported later.
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None


def _imported(module: str, name: str) -> Any:
    """Return the attribute with that name in a module. Import the module with garbage collection off: modules are
    never freed, and repeated collections take a large part of a command's start-up time."""
    if module not in sys.modules and gc.isenabled():
        gc.disable()
        try:
            importlib.import_module(module)
        finally:
            # Freezing excludes the objects that the import created from all later collections.
            gc.freeze()
            gc.enable()
    return getattr(importlib.import_module(module), name)


def _missing(name: str, missing: MissingPackage) -> click.Command:
    """Return a command that accepts any arguments and raises `missing`."""

    def refuse(words: tuple[str, ...]) -> None:
        raise missing

    # `--help` and completion list all commands, so a missing package must be no error until its command is used.
    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        help=f"{missing}.",
        context_settings={"ignore_unknown_options": True},
    )
