"""Test `headgate queue`: inspection and control, with a running worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.queue.operator import operator
from headgate.cli.queue.queue import command
from headgate.cli.queue.worker import run as run_worker
from headgate.cli.queue.workerfile import DEFAULT, read_worker_file
from headgate.queue.messages.board import MessageBoard
from headgate.queueing import Message
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import QueueHarness, harness, serving

FILE = """
[qdo-worker]
job = {module}:job
wait_interval = 1
[partitions]
policy = automatic
[queuey]
connection = {url}/v1/sync/
app_key = cafe1234cafe
[store]
url = sqlite:///{root}/workers.sqlite
[retry]
attempts = 1
"""
SEEN: list[str] = []


def job(message: Message, context: Any) -> None:
    if message.body == "bad":
        raise ValueError("bad")
    SEEN.append(message.body)


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[tuple[QueueHarness, str]]:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    (tmp_path / "queue_command_jobs.py").write_text(f"import sys\njob = sys.modules[{__name__!r}].job\n")
    SEEN.clear()
    async with serving(board) as url, harness(url, MemoryBackend()) as found:
        file = tmp_path / "worker.conf"
        file.write_text(FILE.format(module="queue_command_jobs", url=url, root=tmp_path))
        yield found, str(file)
    await board.close()


async def ask(config: str, name: str, *arguments: str) -> Result:
    """Run the command in a separate thread, like a process."""
    return await asyncio.to_thread(CliRunner().invoke, command, [name, "-c", config, *arguments])


async def output_of(config: str, name: str, *arguments: str) -> str:
    result = await ask(config, name, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.long
async def test_a_queue_is_watched_and_steered_while_a_worker_runs(hands: tuple[QueueHarness, str]) -> None:
    harness, config = hands
    await output_of(config, "post", "q", "one", "--create", "2", "--partition", "2")
    assert json.loads(await output_of(config, "list", "--json"))[0]["state"] == "new"
    assert json.loads(await output_of(config, "lag", "--json"))[1] == {
        "partition": "q:2", "waiting": 1, "oldest_s": pytest.approx(0, abs=60), "retrying": 0, "delayed": 0,
    }  # fmt: skip
    assert (await ask(config, "lag", "--above", "0")).exit_code == 1
    assert json.loads(await output_of(config, "peek", "q:2"))["body"] == "one"

    done = asyncio.Event()
    working = asyncio.ensure_future(run_until(done, run_worker(read_worker_file(Path(config)))))
    try:
        await harness.until("the first is processed", lambda: SEEN == ["one"])
        async with asyncio.timeout(DEADLINE_S):
            while "processed" not in await output_of(config, "list"):
                pass
        await output_of(config, "pause", "q:2")
        await output_of(config, "seek", "q:2", "start")
        async with asyncio.timeout(DEADLINE_S):
            while "to seek" in (shown := await output_of(config, "list")):
                pass
        assert "paused" in shown
        await output_of(config, "post", "q", "two", "--partition", "2")
        assert SEEN == ["one"], "paused"
        await output_of(config, "resume", "q:2")
        await harness.until("the first again, and the second", lambda: SEEN == ["one", "one", "two"])
        await output_of(config, "post", "q", "bad", "--partition", "1")
        async with asyncio.timeout(DEADLINE_S):
            while not (dead := json.loads(out) if (out := await output_of(config, "dead", "--json")) else []):
                pass
        assert (dead[0]["partition"], dead[0]["tries"], dead[0]["error"]) == ("q", 1, "ValueError: bad")
        assert await output_of(config, "dead", "--show", dead[0]["id"]) == "bad"
        await output_of(config, "post", DEAD_LETTERS, "no dead letter at all", "--partition", "1")
        assert await output_of(config, "replay", dead[0]["id"]) == "1 posted again\n"
        async with asyncio.timeout(DEADLINE_S):
            while (
                not (again := json.loads(await output_of(config, "dead", "--json"))) or again[0]["id"] == dead[0]["id"]
            ):
                pass
        assert len(again) == 1, "posted again, and given up again"
    finally:
        done.set()
        await working


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("peek", "unknown"), "there is no such queue"),
        (("peek", "q:0"), "not a partition of a queue"),
        (("pause", "unknown"), "no worker knows a partition"),
        (("seek", "q", "yesterday"), "give start, now, a message id, or a time"),
        (("post", "q", ""), "must not be empty"),
        (("replay",), "select dead letters"),
        (("dead", "--show", "a" * 32), "no such dead letter"),
    ],
)
async def test_impossible_commands_print_one_line(
    hands: tuple[QueueHarness, str], arguments: tuple[str, ...], text: str
) -> None:
    harness, config = hands
    await harness.source.create("q")
    result = await ask(config, *arguments)
    assert isinstance(result.exception, UserError) and text in str(result.exception), result.exception


async def test_a_queue_is_bounded_and_says_its_bounds(hands: tuple[QueueHarness, str]) -> None:
    _, config = hands
    none = await ask(config, "bound", "q", "--age", "60")
    assert isinstance(none.exception, UserError) and "no such queue" in str(none.exception)
    await output_of(config, "post", "q", "first")
    assert await output_of(config, "bound", "q") == "q: no limits\n"
    shown = await output_of(config, "bound", "q", "--messages", "2", "--full", "drop", "--age", "60")
    assert shown == "q: at most 2 messages in each partition, then drop; messages are kept at most 60 s\n"
    for body in ("second", "third"):
        await output_of(config, "post", "q", body)
    peeked = await output_of(config, "peek", "q")
    assert "first" not in peeked and "third" in peeked
    shown = await output_of(config, "bound", "q", "--messages", "0", "--bytes", "9")
    assert shown == "q: at most 9 bytes in each partition, then drop; messages are kept at most 60 s\n"
    wrong = await ask(config, "bound", "q", "--age", "99999999999")
    assert isinstance(wrong.exception, UserError) and "age_max" in str(wrong.exception)
    assert await output_of(config, "bound", "q", "--bytes", "0", "--age", "0") == "q: no limits\n"


async def test_commands_report_a_missing_server(tmp_path: Path) -> None:
    file = tmp_path / "worker.conf"
    file.write_text("[queuey]\nconnection = http://127.0.0.1:1/v1/sync/\n")
    result = await ask(str(file), "list")
    assert isinstance(result.exception, UserError) and "127.0.0.1:1" in str(result.exception)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the settings file in the current directory, whose pages serve queues."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "messages.key").write_text("cafe1234cafe\n")
    file = tmp_path / "headgate.conf"
    file.write_text("[scheduler]\nstate_dir = state\n[web]\nport = 9123\n[messages]\n")
    return file


async def test_without_a_worker_file_commands_also_find_the_queues_that_the_pages_serve(site: Path) -> None:
    usual = "http://127.0.0.1:5000/v1/queuey/"
    async with operator(DEFAULT) as at:
        assert at.file.urls == (usual, "http://127.0.0.1:9123/v1/queuey/") and at.file.key == "cafe1234cafe"
    site.write_text(site.read_text().replace("[messages]\n", ""))
    async with operator(DEFAULT) as at:
        assert at.file.urls == (usual,)


async def test_they_send_no_key_to_another_users_program_at_the_port_of_the_pages(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.cli.identity.pages.owners", lambda port: {4242} if port == 9123 else set())
    async with operator(DEFAULT) as at:
        assert at.file.urls == ("http://127.0.0.1:5000/v1/queuey/",)
