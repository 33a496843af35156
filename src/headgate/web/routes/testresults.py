"""Show the test results of a build, read from files among its logs."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

import msgspec

from headgate.ports.history import PastBuild
from headgate.ports.logstore import LogStoreError, NotStored
from headgate.rest import HTTPException, HttpRequest, NotFoundException, get
from headgate.web.buildlogs import BuildLogs
from headgate.web.builds import Builds
from headgate.web.junit import CaseShape, JUnitReader, Malformed, worst
from headgate.web.remote import NoLogs
from headgate.web.routes.logs import checked
from headgate.web.shapes import LogFile
from headgate.web.site import Site

FILES_MAX = 20
FILE_MAX_BYTES = 5_000_000
WHOLE_MAX_BYTES = 20_000_000
"""Size limit of all files of a build together."""
AT_ONCE = 2
"""Limit on the builds that are read at a time; others wait for their turn."""
KEPT_MAX = 32
"""Number of builds whose results are cached."""
NAMED = re.compile(r"(^|/)(TEST-[^/]*|[^/]*(junit|test[-_]?results?|nosetests|pytest|xunit)[^/]*)\.xml$", re.IGNORECASE)
KINDS = frozenset({"junit", "unittest", "unit_test_report", "xunit"})
"""Types in the metadata of artifacts that are test reports, or directories of them."""


class TestResultsShape(msgspec.Struct, frozen=True, kw_only=True):
    """Summarise the JUnit files among the logs of a build. Headgate only."""

    files: tuple[str, ...]
    passed: int
    failed: int
    errors: int
    skipped: int
    seconds: float
    cases: tuple[CaseShape, ...]
    """At most 500 tests: those that failed, then the skipped ones, then the slowest."""
    problems: tuple[str, ...] = msgspec.field(name="troubles")
    """Files that could not be read, with the reasons."""


_Key = tuple[str, tuple[LogFile, ...]]
"""A build and the files that are read."""
_turns = asyncio.Semaphore(AT_ONCE)
_known: OrderedDict[_Key, TestResultsShape] = OrderedDict()
_reading: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
"""Locks of the requests that read now, or wait for that."""


@get("/api/tenant/{tenant:str}/build/{build:str}/tests")
async def test_results(site: Site, request: HttpRequest, tenant: str, build: str) -> TestResultsShape:
    """Return the test results of a build, read from JUnit files among its logs: artifacts whose metadata has the type
    `junit`, `unittest`, `unit_test_report` or `xunit`, then files named like `junit.xml`, `TEST-*.xml` or
    `test-results.xml`; at most 20 files of 5 MB each. Headgate only.
    """
    id = await checked(site, tenant, build)
    known = await Builds.of(site, tenant, request).build(id)
    reports = tuple(_meant(tenant, known)) if known is not None else ()
    try:
        files = await site.logs.files(id, "")
    except NotFoundException:
        files = []
    first = [file for file in files if file.path in reports or _below(file.path, reports)]
    found = tuple([*first, *(file for file in files if NAMED.search(file.path) and file not in first)][:FILES_MAX])
    return await _read_once(site.logs, id, found)


async def _read_once(logs: BuildLogs, build: str, files: tuple[LogFile, ...]) -> TestResultsShape:
    """Return the results, which one request reads while others with the same question wait for them."""
    # Sizes are part of the key: a report that has grown since is read again.
    key = (build, files)
    async with _reading.setdefault(key, asyncio.Lock()):
        if key not in _known:
            async with _turns:
                _known[key] = await _results(logs, build, files)
            while len(_known) > KEPT_MAX:
                _known.popitem(last=False)
        return _known[key]


def _meant(tenant: str, build: PastBuild) -> Iterator[str]:
    """Yield the paths, among the logs, of artifacts that are reports of tests; those of directories end with `/`."""
    bases = (f"/t/{tenant}/logs/{build.uuid}/", unquote(urlsplit(build.log_url or "").path))
    for artifact in build.artifacts:
        if str(artifact.metadata.get("type", "")).lower() in KINDS:
            path = unquote(urlsplit(artifact.url).path)
            yield from (path.removeprefix(base) for base in dict.fromkeys(bases) if base and path.startswith(base))


def _below(path: str, reports: Sequence[str]) -> bool:
    return path.endswith(".xml") and any(path.startswith(one) for one in reports if one.endswith("/"))


async def _results(logs: BuildLogs, build: str, files: Sequence[LogFile]) -> TestResultsShape:
    readers, problems, left = list[JUnitReader](), list[str](), WHOLE_MAX_BYTES
    for file in files:
        if file.size_bytes > min(left, FILE_MAX_BYTES):
            problems.append(f"{file.path}: it has {file.size_bytes} bytes, which is more than is read")
            continue
        left -= file.size_bytes
        reader = JUnitReader(file.path)
        try:
            await _read(logs, build, file.path, reader)
        except (Malformed, NoLogs, NotStored, LogStoreError, HTTPException) as error:
            problems.append(str(getattr(error, "detail", "") or error))
            continue
        readers.append(reader)
    return TestResultsShape(
        files=tuple(reader.file for reader in readers),
        passed=sum(reader.counts["passed"] for reader in readers),
        failed=sum(reader.counts["failed"] for reader in readers),
        errors=sum(reader.counts["error"] for reader in readers),
        skipped=sum(reader.counts["skipped"] for reader in readers),
        seconds=sum(reader.seconds for reader in readers),
        cases=tuple(worst([case for reader in readers for case in reader.cases])),
        problems=tuple(problems),
    )


async def _read(logs: BuildLogs, build: str, path: str, reader: JUnitReader) -> None:
    """Read a file that may grow meanwhile.  Raise Malformed, NoLogs, NotStored, LogStoreError, 404, 503."""
    got = 0
    async for piece in logs.pieces(build, path):
        got += len(piece)
        if got > FILE_MAX_BYTES:
            raise Malformed(f"{path}: it has more than {FILE_MAX_BYTES} bytes")
        # Parsing takes processor time in proportion to what the job wrote; the loop belongs to the gate.
        await asyncio.to_thread(reader.feed, piece)
    await asyncio.to_thread(reader.feed, b"", final=True)


ROUTES = (test_results,)
