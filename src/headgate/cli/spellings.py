"""Values that a command takes either as an argument or as an option, since the reference's client has only options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def either(name: str) -> Callable[[F], F]:
    """Take the value NAME as an argument or as `--name`; exactly one of them is required."""

    def decorate(command: Callable[..., Any]) -> Any:  # click calls commands with any keywords
        @functools.wraps(command)
        def both(**values: Any) -> Any:
            option = values.pop(f"{name}_option")
            given = [one for one in (values[name], option) if one is not None]
            if len(given) != 1:
                raise click.UsageError(f"say {name.upper()} once: as an argument, or as --{name}")
            return command(**{**values, name: given[0]})

        both = click.argument(name, required=False)(both)
        return click.option(f"--{name}", f"{name}_option", metavar=name.upper(), help=f"The same as {name.upper()}.")(
            both
        )

    return decorate


def truth(name: str, without: str, help: str) -> Callable[[F], F]:
    """Take a value that is true, false, or not given: `--name`, `--name false`, `--without`."""

    def decorate(command: Callable[..., Any]) -> Any:  # as above
        @functools.wraps(command)
        def one(**values: Any) -> Any:
            if values.pop(without):
                # `--held --not-held` contradicts itself; a default of None tells that nothing was said.
                if values[name]:
                    raise click.UsageError(f"--{name} and --{without.replace('_', '-')} exclude each other")
                values[name] = False
            return command(**values)

        one = click.option(f"--{without.replace('_', '-')}", without, is_flag=True, help=f"As --{name} false.")(one)
        return click.option(
            f"--{name}",
            is_flag=False,
            flag_value="true",
            default=None,
            type=click.BOOL,
            metavar="[true|false]",
            help=help,
        )(one)

    return decorate
