"""Test that a reporter is a module and three rows: `docs/how-to/add/a-reporter.md`."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.option import ConnectionOption
from headgate.adapters.reporters.registry import REPORTERS, ReporterDriver, ReporterOptions, connect
from headgate.base.errors import UserError
from headgate.cli.launch.outbox import outbox_senders
from headgate.cli.options import OPTIONS, add
from headgate.cli.resources import connection_shapes
from headgate.cli.settings import read
from headgate.config.drivers import DRIVERS, Driver
from headgate.config.files.checks import StanzaKey, text
from headgate.map.outbox import OutboxMessage, QueueReport
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from tests.house.consumers import CONSUMERS

from ..conftest import PIPELINES, TENANTS
from . import notebook

SETTINGS = "[connection hall]\ndriver = notebook\n"


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the three rows of a new driver."""
    row = ReporterDriver(
        f"{__package__}.notebook",
        {"file": ConnectionOption("text", "", "where lines are written.")},
        lambda section: f"notebook {section['file']}",
        ("file", "where lines are written"),
    )
    monkeypatch.setitem(REPORTERS, "notebook", row)
    monkeypatch.setitem(DRIVERS, "notebook", Driver(None, None, {"heading": StanzaKey(text)}, posts=True))
    monkeypatch.setitem(CONSUMERS, "notebook reporter", {__package__: "heading"})
    known = dict(OPTIONS["connection *"])  # derived from the rows at import
    monkeypatch.setitem(OPTIONS, "connection *", known)
    add(known, "notebook", row.settings)
    known["driver"] = known["driver"]._replace(kind=f"{known['driver'].kind},notebook")


def settings(root: Path, section: str) -> Any:
    (root / "headgate.conf").write_text(SETTINGS + section)
    return read(root / "headgate.conf", {})


async def test_the_reporter_is_made_of_its_section_and_has_an_outbox(tmp_path: Path) -> None:
    found, store = settings(tmp_path, "file = hall.txt\n"), Store(MemoryBackend())
    context = Context(store, Mirror(store, "/zuul"), lambda: 0)
    async with AsyncExitStack() as stack:
        assert set(await outbox_senders(found, context, stack, dict, {})) == {"reports to hall"}  # type: ignore[arg-type]
    assert [(one.driver, one.baseurl) for one in connection_shapes(found)] == [("notebook", "notebook hall.txt")]


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("", r"headgate.conf:1: \[connection hall\] needs a file: where lines are written"),
        ("fil = hall.txt\n", r"unknown option 'fil' in \[connection hall\]; did you mean 'file'"),
        ("file = a.txt\nserver = b\n", r"unknown option 'server' in \[connection hall\]"),
        ("file = hall\n", r"\[connection hall\]: file: a name that ends in .txt"),
    ],
)
async def test_errors_in_its_section_name_the_line(tmp_path: Path, section: str, why: str) -> None:
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, "/zuul"), lambda: 0)
    with pytest.raises(UserError, match=why):
        async with AsyncExitStack() as stack:
            await outbox_senders(settings(tmp_path, section), context, stack, dict, {})  # type: ignore[arg-type]


def test_each_key_of_the_reporter_is_read_by_the_code_that_its_row_names() -> None:
    keys, (words,) = DRIVERS["notebook"].reporter or {}, CONSUMERS["notebook reporter"].values()
    assert words.split() == list(keys)
    assert all(f"'{key}'" in inspect.getsource(notebook) for key in keys)


async def test_a_report_is_written_once_in_a_line_of_its_own(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        reporter = await connect("notebook", ReporterOptions({"file": "a.txt"}, tmp_path, lambda: None, stack))
        hostile = QueueReport(
            v=1, kind="report", id="1", at_ms=0, tenant="example", pipeline="gate", project="git.example/code/api",
            branch="master", change="faster", commit="", item="", report="success", subject="a\nb\x1b[2J" + "c" * 9_000,
        )  # fmt: skip
        for _ in range(2):  # the first answer was lost
            await reporter.tell(OutboxMessage("", hostile, key="one"))
    (line,) = (tmp_path / "a.txt").read_text().splitlines()
    assert line.startswith("one ") and line.isprintable() and len(line) < 300


async def test_reports_of_a_pipeline_arrive_at_the_reporter(tmp_path: Path) -> None:
    hall = 'success:\n      hall: {heading: "Good: {change} of {project} {result}"}'
    content = PIPELINES.replace("success:\n      local: {}", hall, 1)
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": content, "jobs/unit": "#!/bin/sh\nexit 0\n"})
    for project in ("code/api", "code/lib"):
        repositories.create(project, {"README": "text\n"})
    async with AsyncExitStack() as stack:
        given = ReporterOptions({"file": "hall.txt"}, tmp_path, lambda: None, stack)
        reporting = {"hall": ("notebook", await connect("notebook", given))}
        async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, reporting=reporting) as running:
            repositories.propose("code/api", "faster", {"api.py": "1\n"})
            await running.history.result_of("faster", "check")
            async with asyncio.timeout(DEADLINE_S):
                while not (tmp_path / "hall.txt").exists():
                    await running.context.mirror.moved(running.context.mirror.moves)
    (line,) = (tmp_path / "hall.txt").read_text().splitlines()
    key, text = line.split(" ", 1)
    assert key and text.startswith("Good: faster,") and text.endswith(" of git.example/code/api SUCCESS")
