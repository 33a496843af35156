"""Show the test results of a build, from JUnit files among its logs."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary
from xml.parsers import expat

import msgspec

from headgate.base.errors import HeadgateError
from headgate.ports.history import PastBuild
from headgate.ports.logstore import LogStoreError, NotStored
from headgate.rest import HTTPException, HttpRequest, NotFoundException, get
from headgate.web.buildlogs import BuildLogs, NoLogs
from headgate.web.builds import Builds
from headgate.web.routes.logs import checked
from headgate.web.shapes import LogFile
from headgate.web.site import Site

CASES_MAX = 50_000
"""Limit on the tests in one file; a file with more is not read as a test report."""
SHOWN_MAX = 500
"""Limit on the tests that are shown individually."""
TEXT_MAX_CHARS = 4_000
NAME_MAX_CHARS = 500
DEPTH_MAX = 50
FILES_MAX = 20
FILE_MAX_BYTES = 5_000_000
FILES_MAX_BYTES = 20_000_000
"""Size limit of all files of a build together."""
AT_ONCE = 2
"""Limit on the builds whose files are read concurrently; further requests wait."""
RESULTS_MAX = 32
"""Number of builds whose results are cached."""
NAMED = re.compile(r"(^|/)(TEST-[^/]*|[^/]*(junit|test[-_]?results?|nosetests|pytest|xunit)[^/]*)\.xml$", re.IGNORECASE)
KINDS = frozenset({"junit", "unittest", "unit_test_report", "xunit"})
"""Metadata types of artifacts that are test reports, or directories of test reports."""
_WORSE = ("failed", "error")


class Malformed(HeadgateError, ValueError):
    """Report that a file is not JUnit XML, or exceeds a bound."""


class CaseShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one test as the job reported it."""

    name: str
    suite: str
    """The class of the test, or the suite that contains it."""
    file: str
    """Log file that reports it."""
    status: str
    """passed | failed | error | skipped"""
    seconds: float | None
    message: str
    """The message of a test that did not pass."""


@dataclass(slots=True)
class JUnitReader:
    """Parse one file in pieces. Document type declarations are rejected, so that no entity can expand."""

    file: str
    cases: list[CaseShape] = field(default_factory=list)
    """Tests to show: all that failed, and others up to `SHOWN_MAX`; `worst` reduces them if there are too many."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("passed", "failed", "error", "skipped"), 0))
    seconds: float = 0.0
    _parser: expat.XMLParserType = field(init=False)
    _depth: int = 0
    _suites: list[str] = field(default_factory=list)
    _case: dict[str, str] | None = None
    _status: str = "passed"
    _texts: list[str] = field(default_factory=list)
    _length: int = 0
    _in_outcome: bool = False
    _rooted: bool = False

    def __post_init__(self) -> None:
        self._parser = parser = expat.ParserCreate()
        # Without declarations there are no entities, so a file of a kilobyte cannot expand to gigabytes.
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Parse the next piece. Raise Malformed."""
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            raise Malformed(f"{self.file}: {error}") from error

    def _refuse(self, *_: object) -> None:
        raise Malformed(f"{self.file}: document type declarations are not supported")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Malformed(f"{self.file}: elements are nested more than {DEPTH_MAX} levels deep")
        # Reject other XML at its first element, before reading megabytes of it.
        if not self._rooted and name not in ("testsuites", "testsuite"):
            raise Malformed(f"{self.file}: the root element is <{name[:NAME_MAX_CHARS]}>, not <testsuites>")
        self._rooted = True
        if name == "testsuite":
            self._suites.append(attributes.get("name", ""))
        elif name == "testcase":
            self._case, self._status, self._texts, self._length = attributes, "passed", [], 0
        elif self._case is not None and name in ("failure", "error", "skipped"):
            self._status = {"failure": "failed"}.get(name, name)
            self._in_outcome = True
            self._text(attributes.get("message", "") + "\n")

    def _text(self, text: str) -> None:
        # Output of passed tests is not shown, and may be large.
        if self._in_outcome and self._length < TEXT_MAX_CHARS:
            self._texts.append(text[: TEXT_MAX_CHARS - self._length])
            self._length += len(self._texts[-1])

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "testsuite" and self._suites:
            self._suites.pop()
        elif name in ("failure", "error", "skipped"):
            self._in_outcome = False
        elif name == "testcase" and self._case is not None:
            self._keep(self._case)
            self._case = None

    def _keep(self, case: dict[str, str]) -> None:
        self.counts[self._status] += 1
        if sum(self.counts.values()) > CASES_MAX:
            raise Malformed(f"{self.file}: more than {CASES_MAX} tests")
        seconds = _number(case.get("time", ""))
        self.seconds += seconds or 0.0
        # Failed tests are kept in any case, because they are what people look for.
        if self._status not in _WORSE and len(self.cases) >= SHOWN_MAX:
            return
        found = CaseShape(
            name=case.get("name", "")[:NAME_MAX_CHARS],
            suite=(case.get("classname") or (self._suites[-1] if self._suites else ""))[:NAME_MAX_CHARS],
            file=self.file,
            status=self._status,
            seconds=seconds,
            message="".join(self._texts).strip(),
        )
        self.cases.append(found)
        # Reduced only at twice the limit, so that the cost of sorting is small for each test.
        if len(self.cases) > 2 * SHOWN_MAX:
            self.cases = worst(self.cases)


def worst(cases: list[CaseShape]) -> list[CaseShape]:
    """Return the tests to show individually: failed ones first, then skipped ones, then the slowest."""
    rank = {"failed": 0, "error": 0, "skipped": 1, "passed": 2}
    return sorted(cases, key=lambda one: (rank[one.status], -(one.seconds or 0.0)))[:SHOWN_MAX]


def _number(text: str) -> float | None:
    """Parse a number of seconds, with or without commas between thousands; None: it is not valid."""
    try:
        found = float(text.replace(",", "")[:30])
    except ValueError:
        return None
    return found if 0 <= found < 1e9 else None


class TestResultsShape(msgspec.Struct, frozen=True, kw_only=True):
    """Summarise the JUnit files among the logs of a build. Headgate only."""

    files: tuple[str, ...]
    passed: int
    failed: int
    errors: int
    skipped: int
    seconds: float
    cases: tuple[CaseShape, ...]
    """At most 500 tests: failed ones first, then skipped ones, then the slowest."""
    problems: tuple[str, ...]
    """Files that could not be read, with the reasons."""
    former_problems: tuple[str, ...] = msgspec.field(name="troubles", default=())
    """Deprecated: the same as `problems`."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "former_problems", self.problems)


_Key = tuple[str, tuple[LogFile, ...]]
"""A build and the files to read."""
_turns = asyncio.Semaphore(AT_ONCE)
_known: OrderedDict[_Key, TestResultsShape] = OrderedDict()
_reading: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
"""Locks that make requests with the same key wait for the one that reads."""


@get("/api/tenant/{tenant:str}/build/{build:str}/tests")
async def test_results(site: Site, request: HttpRequest, tenant: str, build: str) -> TestResultsShape:
    """Return the test results of a build from JUnit files among its logs. These are artifacts whose metadata has the
    type `junit`, `unittest`, `unit_test_report` or `xunit`, and files with names such as `junit.xml`, `TEST-*.xml` or
    `test-results.xml`; at most 20 files of 5 MB each. Headgate only.
    """
    id = await checked(site, tenant, build)
    known = await Builds.of(site, tenant, request).build(id)
    reports = tuple(_meant(tenant, known)) if known is not None else ()
    try:
        files = await site.logs.files(id, "")
    except NotFoundException:
        # A build without logs has no test results, which is not an error.
        files = []
    first = [file for file in files if file.path in reports or _below(file.path, reports)]
    found = tuple([*first, *(file for file in files if NAMED.search(file.path) and file not in first)][:FILES_MAX])
    return await _read_once(site.logs, id, found)


async def _read_once(logs: BuildLogs, build: str, files: tuple[LogFile, ...]) -> TestResultsShape:
    """Return the results; simultaneous requests for the same files share one reading."""
    # The sizes of files are part of the key, so a report that has grown since is read again.
    key = (build, files)
    async with _reading.setdefault(key, asyncio.Lock()):
        if key not in _known:
            async with _turns:
                _known[key] = await _results(logs, build, files)
            while len(_known) > RESULTS_MAX:
                _known.popitem(last=False)
        return _known[key]


def _meant(tenant: str, build: PastBuild) -> Iterator[str]:
    """Yield the log paths of artifacts that are test reports; paths of directories end with `/`."""
    bases = (f"/t/{tenant}/logs/{build.uuid}/", unquote(urlsplit(build.log_url or "").path))
    for artifact in build.artifacts:
        if str(artifact.metadata.get("type", "")).lower() in KINDS:
            path = unquote(urlsplit(artifact.url).path)
            yield from (path.removeprefix(base) for base in dict.fromkeys(bases) if base and path.startswith(base))


def _below(path: str, reports: Sequence[str]) -> bool:
    return path.endswith(".xml") and any(path.startswith(one) for one in reports if one.endswith("/"))


async def _results(logs: BuildLogs, build: str, files: Sequence[LogFile]) -> TestResultsShape:
    readers, problems, left = list[JUnitReader](), list[str](), FILES_MAX_BYTES
    for file in files:
        # A smaller file may still fit, so continue with the next one.
        if file.size_bytes > min(left, FILE_MAX_BYTES):
            problems.append(f"{file.path}: too large to read: {file.size_bytes} bytes")
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
    """Read a file, which may grow in the meantime.  Raise Malformed, NoLogs, NotStored, LogStoreError, 404, 503."""
    got = 0
    async for piece in logs.pieces(build, path):
        got += len(piece)
        # The file may have grown since its size was read.
        if got > FILE_MAX_BYTES:
            raise Malformed(f"{path}: too large to read: more than {FILE_MAX_BYTES} bytes")
        # Parsing takes time in proportion to what the job wrote, and the event loop may be shared with a gate.
        await asyncio.to_thread(reader.feed, piece)
    await asyncio.to_thread(reader.feed, b"", final=True)


ROUTES = (test_results,)
