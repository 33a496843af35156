"""`headgate docs`: the generated reference pages."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headgate.cli.pages import api, cli
from headgate.cli.pages.differences import page as differences
from headgate.cli.pages.metrics import page as metrics
from headgate.cli.queue.workeroptions import reference as worker
from headgate.cli.settings import reference
from headgate.cli.terminal.say import say
from headgate.config.explain.page import page as configuration
from headgate.map.trees import page


def pages() -> dict[str, str]:
    """Map paths in the repository to generated texts."""
    found = {
        "docs/reference/api.md": api.page(),
        "docs/reference/cli.md": cli.page(),
        "docs/reference/config.md": configuration(),
        "docs/reference/differences.md": differences(),
        "docs/reference/map.md": page(),
        "docs/reference/metrics.md": metrics(),
        "docs/reference/settings.md": reference(),
        "docs/reference/worker.md": worker(),
    }
    return {path: text.rstrip() + "\n" for path, text in found.items()}


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit status 1 if a page is out of date.")
def command(check: bool) -> None:
    """Write the generated pages below docs/reference."""
    for path, text in pages().items():
        file = Path(path)
        if check and (not file.exists() or file.read_text() != text):
            say(f"{path} has drifted; run: make docs", err=True)
            sys.exit(1)
        if not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
