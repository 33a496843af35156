"""Let people order for a while: close a pipeline, open it again."""

from __future__ import annotations

import click

from headgate.cli.identity.pages import pages
from headgate.cli.terminal.say import say

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
_tenant = click.option("--tenant", help="By default the only one.")
_queue = click.option("--queue", default="", help="One queue of the pipeline, as the status names it; by default all.")


@click.command("close")
@_config
@_url
@_tenant
@_queue
@click.option("--reason", required=True, help="The reason, shown with the queues.")
@click.argument("pipeline")
def close(config: str | None, url: str | None, tenant: str | None, queue: str, reason: str, pipeline: str) -> None:
    """Let nothing land from PIPELINE until you open it again.

    Changes still enter and are tested.  Once the command has ended, nothing lands except what it names."""
    at = pages(config, url)
    body = {"pipeline": pipeline, "queue": queue, "reason": reason}
    answer = at.post(f"{at.of(tenant)}/close", body)
    say(f"{_what(pipeline, queue)} is closed: nothing lands until `headgate open {pipeline}`.")
    for change in answer["landing"]:
        say(f"Its push had begun, and it may still land: {change}")


@click.command("open")
@_config
@_url
@_tenant
@_queue
@click.option("--reason", default="", help="The reason, recorded with the action.")
@click.argument("pipeline")
def open_again(config: str | None, url: str | None, tenant: str | None, queue: str, reason: str, pipeline: str) -> None:
    """Let changes land from PIPELINE again; what passed meanwhile lands at once."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/open", {"pipeline": pipeline, "queue": queue, "reason": reason})
    say(f"{_what(pipeline, queue)} is open.")


def _what(pipeline: str, queue: str) -> str:
    return f"Queue {queue} of {pipeline}" if queue else pipeline
