"""Test that proposals are judged in a separate process: with the same results, and without blocking others."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import AsyncIterator

import pytest

from headgate.adapters.judge.subprocess_judge import ApartJudge, JudgeLimits
from headgate.config.dynamic import LayoutRequest, TenantLayouts
from headgate.config.parse import ParseCache
from tests.unit.config.places import BASE, branches, tenant, texts
from tests.waiting import until

SLOW = JudgeLimits(time_max_s=1, memory_max_bytes=300_000_000)


@pytest.fixture
async def judge() -> AsyncIterator[ApartJudge]:
    made = ApartJudge(SLOW)
    yield made
    await made.close()


def layouts(**files: str) -> TenantLayouts:
    acme, cache = tenant(), ParseCache()
    return TenantLayouts.of(acme, branches(acme, {"ops": BASE, **files}, cache), cache)


def request_for(made: TenantLayouts, text: str, files: tuple[str, ...] = ("a",), project: str = "app") -> LayoutRequest:
    found = texts(made.tenant, {project: text})
    (canonical,) = found
    return LayoutRequest("b", "check", canonical, "master", "refs/for/master/x", files, found)


def jobs(count: int, more: str = "") -> str:
    return "".join(f"- job: {{name: j{n}, run: a{more}}}\n" for n in range(count)) + (
        f"- project: {{check: {{jobs: [{', '.join(f'j{n}' for n in range(count))}]}}}}\n"
    )


ALIKE = [
    jobs(3),
    jobs(1, ", vars: {a: [1, 2.5, null, {b: true}]}, nodeset: {nodes: []}"),
    "- job: {name: x, parent: y}",
    "[",
    jobs(1_001),
]


@pytest.mark.long
async def test_the_separate_process_gives_the_same_judgement(judge: ApartJudge) -> None:
    made = layouts(lib="- job: {name: l, run: r}")
    for text in ALIKE:
        question = request_for(made, text)
        assert await judge.judged(made, question) == made.judged(question)


async def test_the_separate_process_follows_landings(judge: ApartJudge) -> None:
    acme, cache = tenant(), ParseCache()
    first = TenantLayouts.of(acme, branches(acme, {"ops": BASE, "lib": "[]"}, cache), cache)
    question = request_for(first, "- project: {check: {jobs: [l]}}")
    assert (await judge.judged(first, question)).errors
    now = branches(acme, {"ops": BASE, "lib": "- job: {name: l, run: r}"}, cache)
    second = TenantLayouts.of(acme, now, cache, before=first)
    found = await judge.judged(second, question)
    assert found == second.judged(question) and [job.name for job in found.graph.jobs] == ["l"]
    assert (await judge.judged(first, question)).errors


async def test_layouts_that_could_not_be_sent_are_sent_with_the_next_question(
    judge: ApartJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, cache = tenant(), ParseCache()
    first = TenantLayouts.of(acme, branches(acme, {"ops": BASE, "lib": "[]"}, cache), cache)
    question = request_for(first, "- project: {check: {jobs: [l]}}")
    assert (await judge.judged(first, question)).errors
    now = branches(acme, {"ops": BASE, "lib": "- job: {name: l, run: r}"}, cache)
    second = TenantLayouts.of(acme, now, cache, before=first)

    def fails(_: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(pickle, "dumps", fails)
        await judge.judged(second, question)
    assert await judge.judged(second, question) == second.judged(question)
    assert judge._running is not None and not judge._running.waiting


def chain(links: int, ends: int) -> str:
    """A chain of jobs, each inheriting from the previous one, and many that inherit from the last."""
    vars = ", ".join(f"k{n}: v" for n in range(40))
    made = [
        f"- job: {{name: c{n}, run: r, parent: {f'c{n - 1}' if n else 'base'}, vars: {{a{n}: {{{vars}}}}}}}\n"
        for n in range(links)
    ]
    made += [f"- job: {{name: j{n}, parent: c{links - 1}}}\n" for n in range(ends)]
    return "".join(made) + f"- project: {{check: {{jobs: [{', '.join(f'j{n}' for n in range(ends))}]}}}}\n"


LONG = chain(190, 900)
"""A hundred kilobytes that take many seconds."""
LARGE = "- job: {name: j, run: a, vars: {x: [" + "abcdefgh, " * 150_000 + "]}}\n"


async def test_a_slow_evaluation_is_killed_and_reported_while_others_continue(judge: ApartJudge) -> None:
    made = layouts()
    slow = asyncio.ensure_future(judge.judged(made, request_for(made, LONG)))
    quick = await judge.judged(made, request_for(made, jobs(2), project="lib"))
    assert [job.name for job in quick.graph.jobs] == ["j0", "j1"] and not slow.done()
    beats = list[bool]()

    def ended() -> bool:
        beats.append(slow.done())
        return beats[-1]

    await until("it is killed", ended, every_s=0.01)
    (error,) = (await slow).errors
    assert "more than 1 s" in error.text and "config_reading_max_s" in error.text
    assert (error.project, error.branch, error.path) == ("git.acme/app", "master", "zuul.yaml")
    assert len(beats) > 4, "the loop went on"


async def test_an_evaluation_with_too_much_memory_is_reported(judge: ApartJudge) -> None:
    made = layouts()
    judge._limits = JudgeLimits(time_max_s=20, memory_max_bytes=60_000_000)
    (error,) = (await judge.judged(made, request_for(made, LARGE))).errors
    assert "more than 60 MB" in error.text and "config_reading_max_bytes" in error.text
    assert not (await judge.judged(made, request_for(made, jobs(2)))).errors


async def test_a_project_that_asks_much_does_not_delay_another(judge: ApartJudge) -> None:
    made = layouts()
    many = [asyncio.ensure_future(judge.judged(made, request_for(made, LONG))) for _ in range(20)]
    await judge.judged(made, request_for(made, jobs(2), project="lib"))
    assert not any(one.done() for one in many[1:])
    for one in many:
        one.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    assert not (await judge.judged(made, request_for(made, jobs(2)))).errors


@pytest.mark.long
async def test_a_killed_process_is_restarted_and_its_request_repeated(judge: ApartJudge) -> None:
    made = layouts()
    await judge.judged(made, request_for(made, jobs(1)))
    running = judge._running
    assert running is not None
    slow = asyncio.ensure_future(judge.judged(made, request_for(made, LONG)))
    await until("it is judged", lambda: running.waiting and _children(running.process.pid))
    os.kill(running.process.pid, signal.SIGKILL)
    (error,) = (await slow).errors
    assert "more than 1 s" in error.text
    assert judge._running is not running


async def test_no_fork_outlives_the_process_that_judges(judge: ApartJudge) -> None:
    made = layouts()
    slow = asyncio.ensure_future(judge.judged(made, request_for(made, LONG)))
    await judge.judged(made, request_for(made, jobs(1), project="lib"))
    running = judge._running
    assert running is not None
    children = [int(pid) for pid in _children(running.process.pid)]
    assert children
    await judge.close()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    await until("no fork outlives the process", lambda: not any(_lives(pid) for pid in children), within_s=4)


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
