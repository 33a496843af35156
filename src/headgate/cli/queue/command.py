"""The group of commands."""

from __future__ import annotations

import click

from headgate.cli.queue.bound import bound
from headgate.cli.queue.changing import pause, post, resume, seek, withdraw
from headgate.cli.queue.importing import import_
from headgate.cli.queue.letters import dead, replay
from headgate.cli.queue.looking import delayed, lag, list_, peek
from headgate.cli.queue.schedules import schedule, schedules, unschedule
from headgate.cli.queue.serve import serve


@click.group(name="queue")
def command() -> None:
    """Queues of messages: serve them, look at them, steer the workers that process them."""


for one in (
    serve,
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
