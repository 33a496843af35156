"""The queues in a terminal, from the status document of the API."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_LOOK = {"SUCCESS": ("✔", "green"), "SKIPPED": ("-", "dim"), "CANCELED": ("×", "dim")}


def board(status: dict[str, Any]) -> RenderableType:
    """One block a pipeline, one line an item, a mark a job."""
    return Group(*(_pipeline(pipeline) for pipeline in status["pipelines"]))


def _pipeline(pipeline: dict[str, Any]) -> RenderableType:
    queues = [(queue, [i for head in queue["heads"] for i in head]) for queue in pipeline["change_queues"]]
    queues = [(queue, items) for queue, items in queues if items]
    count = sum(len(items) for _, items in queues)
    title = Text.assemble((pipeline["name"], "bold"), (f"  {pipeline['manager']}, {count} items", "dim"))
    table = Table.grid(padding=(0, 2))
    for queue, items in queues:
        window = f", window {queue['window']}" if queue["window"] else ""
        table.add_row(Text(f"  {queue['name']}{window}", style="cyan"))
        for item in items:
            table.add_row(*_item(item))
    return Group(title, table)


def _item(item: dict[str, Any]) -> tuple[Text, Text, Text]:
    ref = item["refs"][0]
    failing = item["failing_reasons"]
    style = "red" if failing else "" if item["active"] and item["live"] else "dim"
    chain = "  └ " if item["item_ahead"] else "  ● "
    name = Text(f"{chain}{ref['project']} {ref['id'] or ref['ref']}", style=style)
    jobs = Text(" ").join(_job(job) for job in item["jobs"]) if item["jobs"] else Text(item["phase"], style="dim")
    return name, jobs, Text("; ".join(failing), style="red")


def _job(job: dict[str, Any]) -> Text:
    if job["result"]:
        mark, style = _LOOK.get(job["result"], ("✘", "red"))
    else:
        mark, style = ("▶", "blue") if job["running"] else ("·", "dim")
    return Text(f"{mark} {job['name']}", style=style)
