"""SARIF 2.1.0: the form in which editors and forges read reports of checkers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headgate import __version__
from headgate.cli.check.inspection import TenantProblem
from headgate.config.check.findings import Cause
from headgate.config.files.source import CHECKED, ERRORS
from headgate.config.model import ConfigError

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def log(tenants: Mapping[str, TenantProblem]) -> dict[str, Any]:
    """Return one run with a result for each cause, and its consequences as related places. Paths are relative to
    their repositories."""
    results = [_result(tenant, problem, cause) for tenant, problem in tenants.items() for cause in problem.causes]
    names = list(dict.fromkeys(result["ruleId"] for result in results))
    rules = [{"id": name, "shortDescription": {"text": _when(name)}} for name in names]
    driver = {"name": "headgate", "version": __version__, "semanticVersion": __version__, "rules": rules}
    # Columns are counted in characters, as Python does; without this, readers count UTF-16 units.
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
        # Forges recognise an alert by this across commits, so it must not depend on lines.
        "partialFingerprints": {"headgate/v1": _fingerprint(error)},
        "properties": {"tenant": tenant, "ends": [graph._asdict() for graph in cause.graphs]},
    }
    if others:
        found["relatedLocations"] = [{**_location(problem, one), "message": {"text": one.text}} for one in others]
    return found


def _fingerprint(error: ConfigError) -> str:
    """Return a hash of the error that stays the same when other lines move it."""
    parts = (error.name, error.text, error.project, error.branch, error.path)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _location(problem: TenantProblem, error: ConfigError) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if error.path:
        # A path is a URI here: a blank or `#` in a file name would break it.
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
