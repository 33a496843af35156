"""How often the test results of a build are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.web.routes import testresults
from headgate.web.shapes import LogFile

REPORT = b'<testsuite><testcase classname="a" name="b" time="1"/></testsuite>'


class Logs:
    """Represent the logs of a build with one report."""

    def __init__(self) -> None:
        self.reads = 0
        self.wrong = False

    async def files(self, build: str, url: str) -> list[LogFile]:
        return [LogFile(path="junit.xml", size_bytes=len(REPORT), url="")]

    async def pieces(self, build: str, path: str) -> AsyncIterator[bytes]:
        self.reads += 1
        await asyncio.sleep(0)
        if self.wrong:
            raise ConnectionError("gone")
        yield REPORT


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    """Provide the logs that the route reads, of a build that everybody may see."""

    async def found(*_: Any) -> str:
        return "b1"

    async def unknown(*_: Any) -> None:
        return None

    builds = SimpleNamespace(of=lambda *_: SimpleNamespace(build=unknown))
    monkeypatch.setattr(testresults, "checked", found)
    monkeypatch.setattr(testresults, "Builds", builds)
    testresults._known.clear()
    return Logs()


async def results_of(logs: Logs) -> testresults.TestResultsShape:
    answer = await testresults.test_results.fn(cast(Any, SimpleNamespace(logs=logs)), cast(Any, None), "t", "b1")
    return cast(testresults.TestResultsShape, answer)


async def test_requests_at_the_same_time_read_the_results_of_a_build_once(logs: Logs) -> None:
    answers = await asyncio.gather(*(results_of(logs) for _ in range(6)))
    assert logs.reads == 1 and {one.passed for one in answers} == {1}
    assert (await results_of(logs)).passed == 1 and logs.reads == 1


async def test_results_that_one_request_cannot_read_are_read_for_the_next(logs: Logs) -> None:
    logs.wrong = True
    tasks = [asyncio.ensure_future(results_of(logs)) for _ in range(2)]
    with pytest.raises(ConnectionError):
        await tasks[0]
    logs.wrong = False
    assert (await tasks[1]).passed == 1 and logs.reads == 2
