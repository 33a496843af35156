"""The group of commands."""

from __future__ import annotations

import click

from headgate.cli.queue.serve import serve


@click.group(name="queue")
def command() -> None:
    """Queues of messages: serve them, look at them, steer the workers that process them."""


command.add_command(serve)
