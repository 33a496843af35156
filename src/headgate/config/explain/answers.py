"""Describe job graphs in the form of Zuul's API, and compare two such descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headgate.config.explain.describe import AttributeDifference
from headgate.config.explain.variants import nodeset
from headgate.config.model import FrozenGraph, FrozenJob, Playbook

_PHASES = ("pre_playbooks", "playbooks", "post_playbooks", "cleanup_playbooks")
_UNCHANGED = (
    "pre_timeout",
    "timeout",
    "post_timeout",
    "ansible_version",
    "ansible_split_streams",
    "workspace_scheme",
    "workspace_checkout",
)
_VARIABLES = ("vars", "extra_vars", "host_vars", "group_vars")
Named = Callable[[str], str]
"""Function that returns the canonical name of a project, or the given name if it is unknown."""


def graph(found: FrozenGraph) -> list[dict[str, Any]]:
    """Return a job graph in the form of the API's `freeze-jobs` (JSON)."""
    # Zuul does not show dependencies on initializers, which every regular job has.
    first = {job.name for job in found.jobs if job.type == "initializer"}
    return [
        {
            "name": j.name,
            "dependencies": [{"name": d.name, "soft": d.soft} for d in j.dependencies if d.name not in first],
        }
        for j in found.jobs
    ]


def job(found: FrozenJob) -> dict[str, Any]:
    """Return a job in the form of the API's `freeze-job` (JSON), without values that only a build has. Of secrets, it
    contains only the names."""
    answer: dict[str, Any] = {
        "job": found.name,
        "pre_timeout": found.pre_timeout_s,
        "timeout": found.timeout_s,
        "post_timeout": found.post_timeout_s,
        "override_checkout": found.override_checkout or None,
        "ansible_version": found.ansible_version or None,
        "ansible_split_streams": found.ansible_split_streams,
        "workspace_scheme": found.workspace_scheme,
        "workspace_checkout": found.workspace_checkout,
        "nodeset": nodeset(found.nodeset),
        "vars": found.vars,
        "extra_vars": found.extra_vars,
        "host_vars": found.host_vars,
        "group_vars": found.group_vars,
        "failure_output": list(found.failure_output),
        "zuul": {
            "job": found.name,
            "voting": found.voting,
            "post_review": found.post_review,
            "jobtags": list(found.tags),
            "projects": {p.project: {"canonical_name": p.project} for p in found.required_projects},
        },
    }
    # Zuul omits these keys for noop, which runs no playbooks.
    if not found.noop:
        answer |= {
            "pre_playbooks": [_book(book) for book in found.pre_run],
            "playbooks": [_book(book) for book in found.run],
            "post_playbooks": [_book(book) for book in found.post_run if not book.ignore_result],
            "cleanup_playbooks": [_book(book) for book in found.post_run if book.ignore_result],
        }
    return answer


def _book(book: Playbook) -> dict[str, Any]:
    return {
        "connection": book.connection,
        "project": book.project,
        "branch": book.branch,
        "path": book.path,
        "trusted": book.trusted,
        "roles": [
            {
                "target_name": role.name,
                "type": "zuul",
                "project_canonical_name": role.project,
                "implicit": role.implicit,
                "connection": role.connection,
                "project": role.project,
            }
            for role in book.roles
        ],
        "secrets": {secret.name: "REDACTED" for secret in book.secrets},
        "semaphores": [{"name": name} for name in book.semaphores],
        "cleanup": book.cleanup,
        "nesting_level": book.nesting,
        "preserve_home_paths": list(book.preserve_home_paths),
    }


# --- comparing two answers


def graphs_differ(ours: Iterable[Any], theirs: Iterable[Any]) -> Iterator[AttributeDifference]:
    """Yield the differences between the jobs, and their dependencies, in two answers of `freeze-jobs`. An unexpected
    type counts as a difference."""
    mine, other = _dependencies(ours), _dependencies(theirs)
    for name in dict.fromkeys((*mine, *other)):
        if name not in other:
            yield AttributeDifference(name, "runs", None)
        elif name not in mine:
            yield AttributeDifference(name, None, "runs")
        elif mine[name] != other[name]:
            yield AttributeDifference(f"{name}.dependencies", mine[name], other[name])


def _dependencies(answer: Iterable[Any]) -> dict[str, list[str]]:
    found = {}
    for entry in answer:
        dependencies = _list(_get(entry, "dependencies"))
        found[str(_get(entry, "name"))] = sorted(
            f"{_get(d, 'name')}{' (soft)' if _get(d, 'soft') else ''}" for d in dependencies
        )
    return found


def jobs_differ(ours: Mapping[str, Any], theirs: Any, named: Named, own: str) -> Iterator[AttributeDifference]:
    """Yield the differences between two answers of `freeze-job`. Attributes missing in `theirs` are not compared; `own`
    is the item's project."""
    mine, other = _facts(ours, named, own), _facts(theirs, named, own)
    for key, value in other.items():
        if (old := mine.get(key)) != value:
            yield from _values(key, old, value)


def _values(path: str, mine: Any, other: Any) -> Iterator[AttributeDifference]:
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*mine, *other)):
            if mine.get(key) != other.get(key):
                yield from _values(f"{path}.{key}", mine.get(key), other.get(key))
    else:
        yield AttributeDifference(path, mine, other)


def _facts(answer: Any, named: Named, own: str) -> dict[str, Any]:
    """Return the comparable attributes in a normal form: with lists without a meaningful order sorted, and null values
    replaced by empty ones."""
    found: dict[str, Any] = {}
    if not isinstance(answer, dict):
        return {"answer": f"not a mapping but {type(answer).__name__}"}
    for key in _UNCHANGED:
        if key in answer:
            found[key] = answer[key]
    if "ansible_version" in found:
        found["ansible_version"] = str(found["ansible_version"] or "")
    # Older servers use the former name.
    if "override_checkout" in answer or "override_branch" in answer:
        found["override_checkout"] = answer.get("override_checkout") or answer.get("override_branch") or ""
    found |= {key: answer[key] or {} for key in _VARIABLES if key in answer}
    if "failure_output" in answer:
        found["failure_output"] = sorted(map(str, _list(answer["failure_output"])))
    if isinstance(answer.get("nodeset"), dict):
        found["nodeset"] = _nodes(answer["nodeset"])
    for key in _PHASES:
        if key in answer:
            found[key] = [_playbook(book, named) for book in _list(answer[key])]
    return found | _zuul(answer.get("zuul"), named, own)


def _zuul(zuul: Any, named: Named, own: str) -> dict[str, Any]:
    if not isinstance(zuul, dict):
        return {}
    found = {key: zuul[key] for key in ("voting", "post_review") if key in zuul}
    if "jobtags" in zuul:
        found["jobtags"] = sorted(map(str, _list(zuul["jobtags"])))
    if isinstance(zuul.get("projects"), dict | list):
        # Zuul lists all projects that a build gets, so its answer also contains the item's own.
        found["projects"] = sorted({named(name) for name in _names(zuul["projects"])} - {own})
    return found


def _names(projects: Any) -> list[str]:
    """Return the names in a mapping by name, or in a list of names or of mappings with a name."""
    return [str(one if isinstance(one, str) else _get(one, "canonical_name")) for one in projects]


def _playbook(book: Any, named: Named) -> dict[str, Any]:
    secrets = _get(book, "secrets") or {}
    return {
        "project": named(str(_get(book, "project"))),
        "branch": _get(book, "branch"),
        "path": _get(book, "path"),
        "trusted": bool(_get(book, "trusted")),
        "cleanup": bool(_get(book, "cleanup")),
        "nesting_level": _get(book, "nesting_level"),
        "secrets": sorted(str(s if isinstance(s, str) else _get(s, "name")) for s in secrets),
        "semaphores": sorted(str(_get(s, "name")) for s in _list(_get(book, "semaphores"))),
        "preserve_home_paths": _list(_get(book, "preserve_home_paths")),
        "roles": [
            f"{_get(role, 'target_name')} of {named(str(_get(role, 'project_canonical_name')))}"
            f"{' (implicit)' if _get(role, 'implicit') else ''}"
            for role in _list(_get(book, "roles"))
        ],
    }


def _nodes(nodeset: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": nodeset.get("name") or "",
        "nodes": [
            {"name": _get(n, "name"), "aliases": _list(_get(n, "aliases")), "label": _get(n, "label")}
            for n in _list(nodeset.get("nodes"))
        ],
        "groups": sorted(
            f"{_get(g, 'name')}: {', '.join(map(str, _list(_get(g, 'nodes'))))}" for g in _list(nodeset.get("groups"))
        ),
    }


def _get(value: Any, key: str) -> Any:
    """Look up a key in a value from another server, which may have any type."""
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
