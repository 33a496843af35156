"""Describe frozen jobs as plain data in the names of the language, and compare two job graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headgate.config.keys.job import JOB
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob, Nodeset, Playbook

_RENAMED = {
    **{key.field: name.replace("-", "_") for name, key in JOB.items() if key.field},
    "vars": "variables",
    "extra_vars": "extra_variables",
    "host_vars": "host_variables",
    "group_vars": "group_variables",
    "nesting": "nesting_level",
}
_FIRST = (
    "name",
    "parent_chain",
    "description",
    "voting",
    "dependencies",
    "nodeset",
    "timeout",
    "pre_timeout",
    "post_timeout",
    "attempts",
    "semaphores",
    "required_projects",
    "variables",
    "extra_variables",
    "host_variables",
    "group_variables",
    "pre_run",
    "run",
    "post_run",
    "cleanup_run",
    "tags",
    "provides",
    "requires",
    "override_checkout",
    "ansible_version",
    "workspace_scheme",
)
"""Attributes that come first, in this order; all others follow by name."""
_UNSET = (
    "description", "override_checkout", "ansible_version", "image", "image_file", "image_build_name", "success_message",
    "failure_message",
)  # fmt: skip
"""Attributes for which an empty string means that they are not set."""
_WHERE = ("inheritance",)
"""Attributes that a comparison ignores: they contain only positions in files, and moved lines are no difference."""


def jobs(found: FrozenGraph) -> list[dict[str, Any]]:
    """Return the jobs of a graph in order, or its errors (JSON)."""
    if found.errors:
        return [{"error": {"name": error.name, "message": error.text}} for error in found.errors]
    return [job(one) for one in (*found.jobs, *found.reporters)]


def job(found: FrozenJob) -> dict[str, Any]:
    """Return all attributes of a job (JSON); unset ones are null or empty."""
    data = _plain(found)
    data["parent_chain"] = parents(found)
    data["inheritance"] = [variant(entry) for entry in found.inheritance]
    first, *others = (nodeset(one) for one in (found.nodeset, *found.nodeset_alternatives))
    del data["nodeset_alternatives"]
    data["nodeset"] = {**first, "alternatives": others}
    # The frozen job has one list of both, in the order of execution, which the language writes under two keys.
    data["cleanup_run"] = [_playbook(book) for book in found.post_run if book.ignore_result]
    data["post_run"] = [_playbook(book) for book in found.post_run if not book.ignore_result]
    for phase, books in (("pre_run", found.pre_run), ("run", found.run)):
        data[phase] = [_playbook(book) for book in books]
    for one in (data, *data["required_projects"]):
        one |= {key: one[key] or None for key in _UNSET if key in one}
    # The implicit role of a built-in job has no project.
    data["roles"] = [project for project in found.roles if project]
    rest = sorted(key for key in data if key not in _FIRST)
    return {key: data[key] for key in (*_FIRST, *rest)}


def nodeset(found: Nodeset) -> dict[str, Any]:
    """Return a nodeset (JSON). A node with several names has a list of them, as in the language."""
    nodes = [{"name": n.name[0] if len(n.name) == 1 else list(n.name), "label": n.label} for n in found.nodes]
    return {"name": found.name, "nodes": nodes, "groups": _plain(found.groups)}


def parents(found: FrozenJob) -> list[str]:
    """Return the names of a job's ancestors, nearest first."""
    names = dict.fromkeys(entry.partition(" ")[0] for entry in found.inheritance)
    return [name for name in reversed(names) if name != found.name]


def variant(text: str) -> dict[str, Any]:
    """Parse an entry of `FrozenJob.inheritance`, `job project branch path:line`, into a mapping (JSON)."""
    # The path is last because it may contain spaces.
    name, project, branch, place = [*text.split(" ", 3), "", "", ""][:4]
    path, _, line = place.rpartition(":")
    return {"job": name, "project": project, "branch": branch, "path": path, "line": int(line or 0)}


def _playbook(book: Playbook) -> dict[str, Any]:
    """Describe a playbook, giving only the names of the secrets that it may read."""
    data = _plain(book)
    del data["secrets"]
    return {**data, "secret_names": [secret.name for secret in book.secrets]}


def _plain(value: Any) -> Any:  # JSON
    if isinstance(value, msgspec.Struct):
        found = {name: getattr(value, name) for name in value.__struct_fields__}
        return {_RENAMED.get(name, name): _plain(inner) for name, inner in found.items()}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


class AttributeDifference(NamedTuple):
    """Describe the difference of one attribute. `path` separates nested keys by dots; None means absent."""

    path: str
    old: Any
    new: Any


class GraphDifference(NamedTuple):
    """Hold the added, removed and changed jobs of a graph."""

    new: list[dict[str, Any]]
    gone: list[dict[str, Any]]
    changed: dict[str, list[AttributeDifference]]
    """Job name -> attributes that differ."""
    order: list[str]
    """Jobs in both graphs, in their new order; empty if the order is the same."""
    errors_new: list[ConfigError]
    errors_gone: list[ConfigError]

    def __bool__(self) -> bool:
        return any(self)


def difference(old: FrozenGraph, new: FrozenGraph) -> GraphDifference:
    """Return the differences between two graphs. If either has errors, only the errors are compared."""
    if old == new:
        return GraphDifference([], [], {}, [], [], [])
    # A graph with errors has no jobs, so all jobs of the other one would appear as new or gone.
    both = not old.errors and not new.errors
    before, after = (_by_name(graph) if both else {} for graph in (old, new))
    old_common, new_common = [name for name in before if name in after], [name for name in after if name in before]
    return GraphDifference(
        new=[job for name, job in after.items() if name not in before],
        gone=[job for name, job in before.items() if name not in after],
        changed={name: found for name in old_common if (found := job_differences(before[name], after[name]))},
        order=new_common if old_common != new_common else [],
        errors_new=new_errors(old.errors, new.errors),
        errors_gone=new_errors(new.errors, old.errors),
    )


def job_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[AttributeDifference]:
    return [
        d for key in dict.fromkeys((*old, *new)) if key not in _WHERE for d in _values(key, old.get(key), new.get(key))
    ]


def _values(path: str, old: Any, new: Any) -> Iterator[AttributeDifference]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _values(f"{path}.{key}", old.get(key), new.get(key))
    else:
        yield AttributeDifference(path, old, new)


def _by_name(graph: FrozenGraph) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in jobs(graph)}


def new_errors(old: Sequence[ConfigError], new: Sequence[ConfigError]) -> list[ConfigError]:
    """Return the errors of `new` that are not in `old`, regardless of their lines."""
    known = {(e.name, e.text, e.project, e.branch, e.path) for e in old}
    return [e for e in new if (e.name, e.text, e.project, e.branch, e.path) not in known]
