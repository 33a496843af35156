"""Describe frozen jobs as plain data with the names of the configuration language, for other programs to read and
compare."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.config.model import FrozenGraph, FrozenJob, Nodeset, Playbook

_RENAMED = {
    "timeout_s": "timeout",
    "pre_timeout_s": "pre_timeout",
    "post_timeout_s": "post_timeout",
    "attempts_max": "attempts",
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
"""Attributes for which an empty text means that nothing is set."""


def graph(found: FrozenGraph) -> list[dict[str, Any]]:
    """Return the jobs of a graph in order, or its errors (JSON)."""
    if found.errors:
        return [{"error": {"name": error.name, "message": error.text}} for error in found.errors]
    return [job(one) for one in (*found.jobs, *found.reporters)]


def job(found: FrozenJob) -> dict[str, Any]:
    """Return every attribute of a job (JSON); those that are not set are null or empty."""
    data = _plain(found)
    data["parent_chain"] = parents(found)
    data["inheritance"] = [variant(entry) for entry in found.inheritance]
    first, *others = (nodeset(one) for one in (found.nodeset, *found.nodeset_alternatives))
    del data["nodeset_alternatives"]
    data["nodeset"] = {**first, "alternatives": others}
    data["cleanup_run"] = [_playbook(book) for book in found.post_run if book.ignore_result]
    data["post_run"] = [_playbook(book) for book in found.post_run if not book.ignore_result]
    for phase, books in (("pre_run", found.pre_run), ("run", found.run)):
        data[phase] = [_playbook(book) for book in books]
    for one in (data, *data["required_projects"]):
        one |= {key: one[key] or None for key in _UNSET if key in one}
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
