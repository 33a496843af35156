"""The reference page of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from headgate.cli.main import COMMANDS, group

_HEAD = """\
# The command line

`headgate COMMAND --help` prints the same text. The settings file is the first of: `--config`, `HEADGATE_CONFIG`,
`headgate.conf` in the current directory, `~/.config/headgate/headgate.conf`, and `/etc/headgate/headgate.conf`.
Commands that need a running Headgate find it at `[web] root`. They authenticate with the token in `HEADGATE_TOKEN`, or
else with the operator's token, from the settings or from its file, which they send only to Headgate. The exit status
shows the kind of error; the message is one line on standard error that begins with `headgate:`.

| status | means |
|---|---|
| 0 | All went well. |
| 1 | Something is wrong with a file, a setting, the request, or what the command examined. |
| 2 | The command line is not understood. |
| 69 | A package has to be installed first; the text names it. |
| 75 | The store or Headgate does not answer now; the same command may succeed later. |
| 78 | A process of the gate cannot start, and will fail again until the problem in the text is fixed. |

`headgate inventory` ends with the number of the gRPC status that the service answered with.
"""


def page() -> str:
    lines = [_HEAD]
    assert isinstance(group, click.Group), "the table of commands"
    with click.Context(group, info_name="headgate") as context:
        for name in COMMANDS:
            command = group.get_command(context, name)
            assert command is not None, "the table names commands"
            lines += _command(f"headgate {name}", command, context)
    return "\n".join(lines)


def _command(name: str, command: click.Command, above: click.Context, depth: int = 2) -> Iterator[str]:
    with click.Context(command, info_name=name.rpartition(" ")[2], parent=above) as context:
        yield f"{'#' * depth} {name}"
        yield ""
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        yield from ("```", usage, "```", "")
        yield inspect.cleandoc(command.help or "").replace("\b\n", "")
        yield ""
        options = [
            record for p in command.params if (record := p.get_help_record(context)) and isinstance(p, click.Option)
        ]
        if options:
            yield from ("| option | meaning |", "|---|---|")
            for option, meaning in options:
                yield f"| `{option}` | {' '.join(meaning.split()).replace('|', chr(92) + '|')} |"
            yield ""
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                assert found is not None, "it is in the list"
                yield from _command(f"{name} {below}", found, context, depth + 1)
