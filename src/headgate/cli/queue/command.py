"""The group of commands."""

from __future__ import annotations

import importlib

import click

from headgate.cli.queue.bound import bound
from headgate.cli.queue.control import pause, post, resume, seek, withdraw
from headgate.cli.queue.imports import import_
from headgate.cli.queue.letters import dead, replay
from headgate.cli.queue.schedules import schedule, schedules, unschedule
from headgate.cli.queue.views import delayed, lag, list_, peek

LATER = {"serve": "headgate.cli.queue.serve"}
"""What needs a whole server, and is imported only when it is used."""


class QueueCommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        found = getattr(importlib.import_module(LATER[cmd_name]), cmd_name)
        assert isinstance(found, click.Command), "the table names commands"
        return found


@click.group(name="queue", cls=QueueCommands)
def command() -> None:
    """Queues of messages: serve them, look at them, steer the workers that process them."""


for one in (
    list_,
    lag,
    peek,
    delayed,
    bound,
    post,
    withdraw,
    schedule,
    schedules,
    unschedule,
    seek,
    pause,
    resume,
    dead,
    replay,
    import_,
):
    command.add_command(one)
