"""Implement `headgate status`: draw the queues of a running Headgate, live."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

import click
import msgspec

from headgate.base.errors import UserError
from headgate.cli.identity.pages import pages
from headgate.cli.terminal.screen import Block, Drawing, LiveDrawing, Terminal, TextTable
from headgate.cli.terminal.text import Style, Text, joined
from headgate.gate.builds.report import duration
from headgate.web.shapes import ItemShape, JobShape, PipelineShape, QueueShape, RefShape, StateShape, StatusShape

INTERVAL_S = 0.5
"""Seconds between two requests for the status."""
NAMED_MAX = 3
"""An item with at most this many jobs shows all their names; with more, it names only running and failed ones."""
_LOOK: Mapping[str, tuple[str, Style]] = {"SUCCESS": ("✔", "green"), "SKIPPED": ("-", "dim"), "CANCELED": ("×", "dim")}


def board(status: StatusShape, rows_max: int | None = None) -> Drawing:
    """Draw one block per pipeline, one line per item and one mark per job. If that takes more than `rows_max` lines,
    each pipeline shows only its first items and the number of the others."""
    counts = [len(_items(pipeline)) for pipeline in status.pipelines]
    shares = counts if rows_max is None else _shares(counts, rows_max - 3 * len(counts) - len(status.problems))
    problems = (Text(f"{problem.project}: {problem.text}", "red") for problem in status.problems)
    pipelines = (_pipeline(p, share) for p, share in zip(status.pipelines, shares, strict=True))
    return Block(*_stopped(status.state), *problems, *pipelines)


def _stopped(state: StateShape) -> list[Text]:
    """Return a line for each event queue of the tenant that an operator has paused."""
    stopped = {
        "trigger events are discarded": state.trigger_queue_discarding,
        "trigger events are paused": state.trigger_queue_paused,
        "result events are paused": state.result_queue_paused,
    }
    why = f": {state.reason}" if state.reason else ""
    return [Text(f"{text}{why}", "yellow") for text, applies in stopped.items() if applies]


def _items(pipeline: PipelineShape) -> list[tuple[QueueShape, ItemShape]]:
    return [(queue, item) for queue in pipeline.change_queues for head in queue.heads for item in head]


def _shares(counts: list[int], rows: int) -> list[int]:
    """Return the number of lines for each pipeline: as many as it needs, or a fair share, but at least one, if there
    are too few."""
    shares = [0] * len(counts)
    wanting = [n for n, count in enumerate(counts) if count]
    rows = max(rows, len(wanting))
    # Each round divides the remaining lines among the pipelines that need more, so this ends when none does or no line
    # is left.
    while wanting and rows >= len(wanting):
        each = rows // len(wanting)
        for n in wanting:
            given = min(each, counts[n] - shares[n])
            shares[n] += given
            rows -= given
        wanting = [n for n in wanting if shares[n] < counts[n]]
    return shares


def _pipeline(pipeline: PipelineShape, items_max: int) -> Drawing:
    items = _items(pipeline)
    noun = "item" if len(items) == 1 else "items"
    title = Text(pipeline.name, "bold") + Text(f"  {pipeline.manager}, {len(items)} {noun}", "dim")
    if pipeline.state == "error":
        title += Text("  its records cannot be read; run `headgate map check`", "red")
    if pipeline.state == "disabled":
        title += Text("  disabled after too many failures: nothing lands until its configuration is reloaded", "red")
    if pipeline.closed:
        title += Text(f"  nothing lands: {pipeline.closed}", "yellow")
    table = TextTable(crop=True)
    above: QueueShape | None = None
    for queue, item in items[:items_max]:
        if queue is not above and queue.window:  # without a window, every change is in its own queue
            closed = f", nothing lands: {queue.closed}" if queue.closed else ""
            table.add_line(Text(f"  {queue.name}, window {queue.window}{closed}", "cyan"))
        above = queue
        table.add_row(*_item(item))
    hidden = len(items) - items_max
    return Block(title, table, *([Text(f"  … and {hidden} more", "dim")] if hidden > 0 else []))


def _item(item: ItemShape) -> tuple[Text, Text, Text]:
    ref = item.refs[0]
    style: Style = "red" if item.failing_reasons else "" if item.active and item.live else "dim"
    chain = "  └ " if item.item_ahead else "  ● "
    more = f" and {len(item.refs) - 1} more" if len(item.refs) > 1 else ""
    name = Text(f"{chain}{ref.project} {_id(ref)}{more}", style)
    brief = len(item.jobs) > NAMED_MAX
    phase = Text(item.phase if item.live else "needed by the change below", "dim")
    jobs = joined((_job(job, brief) for job in item.jobs), " ") if item.jobs else phase
    if item.failing_reasons:
        jobs = jobs if item.jobs else Text("")  # the reasons say more than the phase
        return name, jobs, Text("; ".join(item.failing_reasons), "red")
    left = f"about {duration(item.remaining_time)} left" if item.remaining_time else ""
    return name, jobs, Text(left, "dim")


def _id(ref: RefShape) -> str:
    """Return the id of a change; for a branch, a tag or another ref, its name and an abbreviated commit."""
    if ref.patchset is not None or not ref.ref:
        return ref.id or ref.ref
    return f"{ref.ref.removeprefix('refs/').removeprefix('heads/')} {ref.id[:8]}".rstrip()


def _job(job: JobShape, brief: bool) -> Text:
    """Draw one job; when `brief`, name it only if it runs or failed."""
    mark, style = _look(job)
    if brief and not job.running and mark != "✘":
        return Text(mark, style)
    done = ""
    if job.running and job.estimated_time and job.elapsed_time is not None:
        done = f" {min(99, int(job.elapsed_time / (job.estimated_time * 10)))}%"
    return Text(f"{mark} {job.name}{done}", style)


def _look(job: JobShape) -> tuple[str, Style]:
    if job.result:
        return _LOOK.get(job.result, ("✘", "red"))
    if job.running or job.paused:
        return ("‖" if job.paused else "▶"), "blue"
    return "·", "dim"


def unreachable(last: Drawing, why: str) -> Drawing:
    """Draw the last known queues, with a note that the server does not answer."""
    return Block(Text(f"{why}; retrying", "red"), last)


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
@click.option("--tenant", help="The tenant; optional if there is only one.")
@click.option(
    "--once", is_flag=True, help="Print the status once and exit; the default if the output is not a terminal."
)
def command(config: str | None, url: str | None, tenant: str | None, once: bool) -> None:
    """Show the queues of a running Headgate."""
    at = pages(config, url)
    place = f"{at.of(tenant)}/status"
    terminal = Terminal()

    def look() -> StatusShape:
        found = at.get(place)
        # A server of the previous release sends only the former name.
        return msgspec.convert({"problems": found.get("troubles", ()), **found}, StatusShape)

    if once or not terminal.moves:
        terminal.print(board(look()))
        return
    # Let the first request fail with an error: the URL is probably wrong.
    seen = board(look())
    # Exit through the context manager below, which restores the terminal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with suppress(KeyboardInterrupt), LiveDrawing(terminal, screen=True) as live:
        while True:
            try:
                shown = seen = board(look(), terminal.size[1])
            except UserError as error:  # the server answered before, so it is probably restarting
                shown = unreachable(seen, str(error))
            live.update(shown)
            time.sleep(INTERVAL_S)
