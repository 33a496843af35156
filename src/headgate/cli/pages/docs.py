"""Implement `headgate docs`: write the generated reference pages, such as those of commands and metrics."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from headgate.adapters.metrics.figures import GAUGES, ProcessMetrics
from headgate.cli.main import COMMANDS, group
from headgate.cli.pages import api
from headgate.cli.pages.differences import page as differences
from headgate.cli.pages.exports import COMPLETIONS, SECTION, completion_script
from headgate.cli.pages.exports import pages as manual
from headgate.cli.queue.workeroptions import reference as worker
from headgate.cli.settings import reference
from headgate.cli.terminal.say import say
from headgate.config.explain.page import page as configuration
from headgate.map.trees import page
from headgate.queue.server.answers import MessageMetrics
from headgate.queue.workers.processor import WorkerMetrics

_COMMANDS_HEAD = """\
# The command line

`headgate COMMAND --help` prints the same text. The settings file is the first of: `--config`, `HEADGATE_CONFIG`,
`headgate.conf` in the current directory or the nearest one above, `~/.config/headgate/headgate.conf`, and
`/etc/headgate/headgate.conf`. Commands that need a running Headgate call its pages on this machine, or else at `[web]
root`. They authenticate with the token in `HEADGATE_TOKEN`, or else with the operator's token, from the settings or
from its file, which they send only to Headgate. The exit status shows the kind of error; the message is one line on
standard error that begins with `headgate:`.

| status | meaning |
|---|---|
| 0 | Success. |
| 1 | There is an error in a file, a setting, the request, or what the command examined. |
| 2 | The command line is invalid. |
| 69 | A package must be installed first; the message names it. |
| 75 | The store or Headgate does not respond at the moment; the same command may succeed later. |
| 78 | A process of the gate cannot start, and will fail again until you fix the problem in the message. |

The exit status of `headgate inventory` is the gRPC status code that the service returned.
"""


_METRICS_HEAD = """# Metrics

Every server serves `/metrics` in Prometheus format; see [operations](../operations.md#monitor-it) for who may read it.
A histogram has the series `_bucket`, `_sum` and `_count`.
"""


SHARED = Path("packaging/share")
"""What the wheel installs below `share`."""


def pages() -> dict[str, str]:
    """Return the generated texts, by path in the repository."""
    found = {
        "docs/reference/api.md": api.page(),
        "docs/reference/cli.md": commands_page(),
        "docs/reference/config.md": configuration(),
        "docs/reference/differences.md": differences(),
        "docs/reference/map.md": page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/settings.md": reference(),
        "docs/reference/worker.md": worker(),
    }
    return {path: text.rstrip() + "\n" for path, text in (found | shared()).items()}


def shared() -> dict[str, str]:
    """Map paths in the repository to the manual pages and the completion scripts, at the places that `man` and shells
    look at."""
    assert isinstance(group, click.Group), "the table of commands"
    with click.Context(group, info_name="headgate", **group.context_settings) as context:
        found = {f"{SHARED}/man/man{SECTION}/{name}.{SECTION}": text for name, text in manual(group, context)}
    return found | {f"{SHARED}/{path}": completion_script(group, shell) for shell, path in COMPLETIONS.items()}


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with status 1 if a page is out of date.")
def command(check: bool) -> None:
    """Write the generated pages: reference, manual and completion."""
    made = pages()
    # Pages of commands that were removed or renamed are deleted, too.
    for left in [str(file) for file in SHARED.rglob("*") if file.is_file() and str(file) not in made]:
        if check:
            say(f"{left} belongs to no command; run: make docs", err=True)
            sys.exit(1)
        Path(left).unlink()
    for path, text in made.items():
        file = Path(path)
        if check and (not file.exists() or file.read_text() != text):
            say(f"{path} is out of date; run: make docs", err=True)
            sys.exit(1)
        if not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def commands_page() -> str:
    """Return the text of the page about commands."""
    lines = [_COMMANDS_HEAD]
    assert isinstance(group, click.Group), "the table of commands"
    with click.Context(group, info_name="headgate", **group.context_settings) as context:
        for name in COMMANDS:
            command = group.get_command(context, name)
            assert command is not None, "the table names commands"
            lines += _command_lines(f"headgate {name}", command, context)
    return "\n".join(lines)


def _command_lines(name: str, command: click.Command, above: click.Context, depth: int = 2) -> Iterator[str]:
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
                yield from _command_lines(f"{name} {below}", found, context, depth + 1)


def metrics_page() -> str:
    """Return the text of the page about metrics."""
    system = ((one.name, "gauge", one.labels, one.doc) for one in GAUGES)
    return "\n".join(
        [
            _METRICS_HEAD,
            *_table("The entire system", "One process at a time reports these.", system),
            *_table("Each process", "", _own(ProcessMetrics().registry)),
            *_table("Message servers", "", _own(MessageMetrics().registry)),
            *_table("Workers of message queues", "", _own(WorkerMetrics().registry)),
        ]
    )


def _own(registry: CollectorRegistry) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield the metrics in a registry, without the library's own process metrics."""
    for one in dict.fromkeys(registry._names_to_collectors.values()):  # the library has no public way to list them
        if isinstance(one, MetricWrapperBase) and one._type != "info":
            # The library adds the end of a counter's name only to what a scrape shows.
            name = f"{one._name}_total" if one._type == "counter" else one._name
            yield name, str(one._type), tuple(one._labelnames), one._documentation


def _table(title: str, text: str, rows: Iterator[tuple[str, str, tuple[str, ...], str]]) -> Iterator[str]:
    yield from (f"## {title}", "", *([text, ""] if text else []))
    yield from ("| metric | kind | labels | meaning |", "|---|---|---|---|")
    for name, kind, labels, doc in rows:
        yield f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {doc} |"
    yield ""
