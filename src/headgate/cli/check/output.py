"""Format the report of `headgate check` as text, as JSON, and as SARIF 2.1.0 for editors and forges."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from headgate import __version__
from headgate.cli.check.inspection import TenantProblem
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.report import block, counts, error_as_json, notes, summary
from headgate.cli.terminal.say import style
from headgate.config.check.findings import Cause
from headgate.config.files.source import CHECKED, ERRORS
from headgate.config.model import ConfigError

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_TWICE = re.compile(
    r"the (job|template|pipeline|nodeset|secret|image|flavor|label|semaphore|section|provider|queue) (\S+) "
    r"(?:is already defined|does not match its existing definition)"
)
"""Matches error messages about a name that is defined twice."""


def as_text(name: str, problem: TenantProblem, limit: int) -> Iterator[str]:
    """Yield a block for each of at most `limit` causes (0: all), then the summary of the tenant."""
    shown = problem.causes[:limit] if limit else problem.causes
    for cause in shown:
        more = [*_elsewhere(problem, cause.error), *notes(cause)]
        yield f"{block(cause.error, more, problem.extent(cause.error))}\n"
    if left := len(problem.causes) - len(shown):
        what = "cause is" if left == 1 else "causes are"
        yield style(f"{left:,} more {what} not shown; --limit 0 shows all, --project and --only filter\n", dim=True)
    if isinstance(problem.loaded, LoadedTenant):
        yield summary(name, problem.loaded, problem.errors, len(problem.causes))
    else:
        yield f"{f'tenant {name}' if name else 'the tenant file'}: cannot be loaded\n"


def _elsewhere(problem: TenantProblem, error: ConfigError) -> Iterator[tuple[str, str]]:
    """Yield a note with the first definition of a name that is defined twice. The error itself does not contain this
    place, so that it stays the same error if lines move there."""
    twice = _TWICE.search(error.text)
    if twice and isinstance(problem.loaded, LoadedTenant):
        kind = "project-template" if twice[1] == "template" else twice[1]
        for first in problem.loaded.layout.admitted((kind, twice[2]))[:1]:
            yield "note", f"the first definition is at {first.place}"


def as_json(problem: TenantProblem) -> dict[str, Any]:
    """Return all errors, grouped by cause, and the counts."""
    errors: list[dict[str, Any]] = []
    for cause in problem.causes:
        first = len(errors)
        for error in cause.errors:
            # List the graphs only with the cause: repeating them for each consequence would multiply the output.
            graphs = [graph._asdict() for graph in cause.graphs] if error is cause.error else []
            errors.append({**located(problem, error), "cause": None if error is cause.error else first, "ends": graphs})
    return {"errors": errors, "counts": {**counts(problem.loaded), "errors": failures(problem, "error")}}


def located(problem: TenantProblem, error: ConfigError) -> dict[str, Any]:
    """Return the error as JSON, with its place down to the column."""
    extent = problem.extent(error)
    body = {**error_as_json(error), "column": 0, "end_line": 0, "end_column": 0}
    if error.line:
        body |= {"column": extent.column, "end_line": extent.end_line, "end_column": extent.end_column}
    return body


def failures(problem: TenantProblem, severity: str) -> int:
    """Return the number of errors of at least this severity."""
    return sum(severity == "warning" or error.severity == "error" for error in problem.errors)


def sarif_log(tenants: Mapping[str, TenantProblem]) -> dict[str, Any]:
    """Return a SARIF log with a result for each cause and its consequences as related locations. Paths are relative to
    their repositories."""
    results = [_result(tenant, problem, cause) for tenant, problem in tenants.items() for cause in problem.causes]
    names = list(dict.fromkeys(result["ruleId"] for result in results))
    rules = [{"id": name, "shortDescription": {"text": _when(name)}} for name in names]
    driver = {"name": "headgate", "version": __version__, "semanticVersion": __version__, "rules": rules}
    # `columnKind` declares that columns count characters, as in Python; the default is UTF-16 units.
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _when(name: str) -> str:
    return known.when if (known := {**ERRORS, **CHECKED}.get(name)) is not None else name


def _result(tenant: str, problem: TenantProblem, cause: Cause) -> dict[str, Any]:
    error = cause.error
    others = (*cause.alike, *cause.also, *cause.follow)
    found: dict[str, Any] = {
        "ruleId": error.name,
        "level": error.severity,
        "message": {"text": error.text},
        "locations": [_location(problem, error)],
        # Forges use this to match an alert across commits, so it must not depend on line numbers.
        "partialFingerprints": {"headgate/v1": _fingerprint(error)},
        "properties": {"tenant": tenant, "ends": [graph._asdict() for graph in cause.graphs]},
    }
    if others:
        found["relatedLocations"] = [{**_location(problem, one), "message": {"text": one.text}} for one in others]
    return found


def _fingerprint(error: ConfigError) -> str:
    """Return a hash of the error that does not change when the error moves to another line."""
    parts = (error.name, error.text, error.project, error.branch, error.path)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _location(problem: TenantProblem, error: ConfigError) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if error.path:
        # SARIF expects a URI: a space or `#` in a file name must be quoted.
        found["artifactLocation"] = {"uri": quote(error.path)}
        if error.line:
            extent = problem.extent(error)
            found["region"] = {
                "startLine": extent.line,
                "startColumn": extent.column,
                "endLine": extent.end_line,
                "endColumn": extent.end_column,
            }
    logical = [f"{error.project}@{error.branch}" if error.branch else error.project] if error.project else []
    return {
        **({"physicalLocation": found} if found else {}),
        **({"logicalLocations": [{"fullyQualifiedName": logical[0], "kind": "module"}]} if logical else {}),
    }
