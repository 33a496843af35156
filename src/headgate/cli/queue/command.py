"""The group of commands."""

from __future__ import annotations

from typing import ClassVar

import click

from headgate.cli.groups import LazyGroup
from headgate.cli.queue.bound import bound
from headgate.cli.queue.control import pause, post, resume, seek, withdraw
from headgate.cli.queue.imports import import_
from headgate.cli.queue.letters import dead, replay
from headgate.cli.queue.schedules import schedule, schedules, unschedule
from headgate.cli.queue.views import delayed, lag, list_, peek


class QueueCommands(LazyGroup):
    later: ClassVar = {"serve": "headgate.cli.queue.serve:serve"}  # needs a whole server


@click.group(name="queue", cls=QueueCommands)
def command() -> None:
    """Serve and inspect message queues, and control the workers that process them."""


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
