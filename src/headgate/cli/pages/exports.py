"""Implement `headgate man`, `completion` and `schema`: write manual pages, completion scripts and the JSON Schema."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from headgate import __version__
from headgate.base.errors import UserError
from headgate.cli.terminal.say import say
from headgate.config.explain import schema

SECTION = 1
"""Manual section of the pages."""
COMPLETIONS = {
    "bash": "bash-completion/completions/headgate",
    "zsh": "zsh/site-functions/_headgate",
    "fish": "fish/vendor_completions.d/headgate.fish",
}
"""Shell -> place where it looks for the completion script, relative to `share`."""


@click.command(name="man")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.pass_context
def man(context: click.Context, directory: Path) -> None:
    """Write manual pages into DIRECTORY, one for each command: headgate.1, headgate-run.1 and so on.

    Read a page with `man -l DIRECTORY/headgate-run.1`. If DIRECTORY is /usr/local/share/man/man1, `man headgate-run`
    finds it.
    """
    root = context.find_root()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages(root.command, root):
            (directory / f"{name}.{SECTION}").write_text(text)
    except OSError as error:
        raise UserError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error


def pages(command: click.Command, context: click.Context, name: str = "headgate") -> Iterator[tuple[str, str]]:
    """Yield the name and the roff source of a command's page, then those of its subcommands."""
    yield name, "\n".join(_page(command, context, name)) + "\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None, "it is in the list"
            # click builds usage lines from the chain of contexts, so create each command's below its group's.
            with click.Context(found, info_name=below, parent=context) as inner:
                yield from pages(found, inner, f"{name}-{below}")


def _page(command: click.Command, context: click.Context, name: str) -> Iterator[str]:
    yield f'.TH "{name.upper()}" "{SECTION}" "" "Headgate {__version__}" "Headgate"'
    yield from (".SH NAME", f"{roff(name)} \\- {roff(command.get_short_help_str(200))}")
    yield from (
        ".SH SYNOPSIS",
        f".B {roff(context.command_path)}",
        roff(" ".join(command.collect_usage_pieces(context))),
    )
    if command.help:
        yield ".SH DESCRIPTION"
        yield from _paragraphs(inspect.cleandoc(command.help))
    options = [record for one in command.params if (record := one.get_help_record(context)) and record[1]]
    # The command may already have made its own option for help, when it ran alone and under other names.
    if names := sorted(command.get_help_option_names(context), key=len):
        options.append((", ".join(names), "Show this message and exit."))
    if options:
        yield ".SH OPTIONS"
        for option, meaning in options:
            yield from (".TP", f"\\fB{roff(option)}\\fR", roff(" ".join(meaning.split())))
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None, "it is in the list"
            yield from (".TP", f"\\fB{roff(name)}-{roff(below)}\\fR({SECTION})", roff(found.get_short_help_str(200)))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the roff lines of a help text; a paragraph that begins with \\b keeps its line breaks."""
    for paragraph in re.split(r"\n\s*\n", text):
        literal = paragraph.startswith("\b")
        yield ".nf" if literal else ".PP"
        yield from map(roff, paragraph.removeprefix("\b").strip("\n").splitlines())
        if literal:
            yield ".fi"


def roff(text: str) -> str:
    """Escape text so that roff shows it unchanged, without requests or escapes."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in escaped)
    # roff reads a line that begins with a dot or a quote as a request.
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(COMPLETIONS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    bash:  headgate completion bash > ~/.local/share/bash-completion/completions/headgate
    zsh:   headgate completion zsh > ~/.zfunc/_headgate    (with ~/.zfunc in fpath, before compinit)
    fish:  headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    say(completion_script(context.find_root().command, shell))


def completion_script(command: click.Command, shell: str) -> str:
    """Return the completion script of a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    return kind(command, {}, "headgate", "_HEADGATE_COMPLETE").source()


@click.command()
@click.option(
    "--tenants",
    is_flag=True,
    help="Print the schema of the tenant file, instead of the schema of files in repositories.",
)
def json_schema(tenants: bool) -> None:
    """Print the JSON Schema of configuration files, for editors that check YAML.

    \b
      headgate schema > zuul-schema.json
      # yaml-language-server: $schema=zuul-schema.json     (the first line of a file)

    Also configure these YAML tags in the language server: !override, !inherit (scalar, sequence and mapping) and
    !encrypted/pkcs1-oaep (scalar and sequence).
    """
    say(json.dumps(schema.tenants() if tenants else schema.files(), indent=2, ensure_ascii=False))
