"""Groups of commands: their modules are imported when a command is used, and a misspelt name brings the near ones."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """Import the module of a command in `later` when the command is used."""

    later: ClassVar[Mapping[str, str]] = {}
    """Name of a command -> `module:attribute` where it is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, imported or not, in order of the alphabet."""
        return sorted([*super().list_commands(ctx), *self.later])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, importing its module first; None if there is none."""
        if cmd_name not in self.later:
            return super().get_command(ctx, cmd_name)
        module, name = self.later[cmd_name].split(":")
        found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command), "the table names commands"
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with.  Raise NoSuchCommand, which names those that are spelt nearly
        so."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None
