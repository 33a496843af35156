"""Describe the variants of jobs in the form of Zuul's API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.config.files.checks import as_list, deep_plain, entries
from headgate.config.files.document import Table
from headgate.config.freeze.resources import Books, UnknownNodeset, UnknownSecret, flattened_nodesets
from headgate.config.kinds.stanza import semaphore_names
from headgate.config.layout import Layout
from headgate.config.model import JobRole, Nodeset, Parameter, Playbook
from headgate.config.parse import Stanza

Json = dict[str, Any]
_PLAIN: dict[str, tuple[str, Any]] = {
    "description": ("description", None),
    "variant_description": ("variant-description", ""),
    "final": ("final", False),
    "abstract": ("abstract", False),
    "intermediate": ("intermediate", False),
    "voting": ("voting", True),
    "protected": ("protected", None),
    "post_review": ("post-review", None),
    "pre_timeout": ("pre-timeout", None),
    "timeout": ("timeout", None),
    "post_timeout": ("post-timeout", None),
    "attempts": ("attempts", 3),
    "match_on_config_updates": ("match-on-config-updates", True),
    "deduplicate": ("deduplicate", "auto"),
    "image_build_name": ("image-build-name", None),
    "secret_exposure": ("secret-exposure", "ignore"),
    "ansible_split_streams": ("ansible-split-streams", None),
    "workspace_scheme": ("workspace-scheme", "golang"),
    "workspace_checkout": ("workspace-checkout", True),
}
"""Attribute in the API's answer -> key in the language, and its default."""
_LISTS = {name: name.replace("_", "-") for name in ("tags", "provides", "requires", "failure_output")}
_VARIABLES = {
    "variables": "vars",
    "extra_variables": "extra-vars",
    "host_variables": "host-vars",
    "group_variables": "group-vars",
}


def context_of(stanza: Stanza) -> Json:
    """Return the place of a stanza: project, branch, path and line (JSON)."""
    source = stanza.source
    return {"project": source.project, "branch": source.branch, "path": source.path, "line": stanza.line}


def parent_of(layout: Layout, stanza: Stanza) -> str | None:
    """Return the name of the job from which a variant inherits, or None for a base job."""
    if "parent" not in stanza.body:
        return layout.tenant.default_parent
    parent = stanza.body["parent"]
    return parent if isinstance(parent, str) else None


def branches_of(stanza: Stanza) -> list[str]:
    """Return the branch patterns that a variant names."""
    return [one["regex"] for one in _patterns(stanza.body, "branches")]


def variant(layout: Layout, stanza: Stanza, name: str, *, attaching: bool = False) -> Json:
    """Return one variant of a job (JSON). With `attaching`, the variant is the entry of a job in a project's
    section."""
    body = stanza.body
    definition: Json = {
        "name": name,
        # An entry in a section has no default parent: it is applied to the job that it attaches.
        "parent": None if attaching and "parent" not in body else parent_of(layout, stanza),
        "branches": branches_of(stanza) or None,
        "source_context": context_of(stanza),
        "files": _patterns(body, "files"),
        "irrelevant_files": _patterns(body, "irrelevant-files"),
        "override_checkout": body.get("override-checkout") or body.get("override-branch"),
        "required_projects": [_required(one) for one in _several(body, "required-projects")],
        "include_projects": _filters(body, "include-projects"),
        "exclude_projects": _filters(body, "exclude-projects"),
        "semaphores": [{"name": one, "resources_first": late} for one, late in semaphore_names(body)],
        "include_vars": [_included(one) for one in _several(body, "include-vars")],
        "dependencies": [_dependency(one) for one in _several(body, "dependencies")],
        # Zuul's API has another name for regular jobs than its language.
        "type": "normal" if body.get("type", "regular") == "regular" else body["type"],
        "ansible_version": str(body["ansible-version"]) if "ansible-version" in body else None,
    }
    definition |= {key: deep_plain(body.get(of, default)) for key, (of, default) in _PLAIN.items()}
    definition |= {key: [str(one) for one in _several(body, of)] for key, of in _LISTS.items()}
    definition |= {key: deep_plain(body.get(of)) or {} for key, of in _VARIABLES.items()}
    return {**definition, **_books(layout, stanza, attaching=attaching), **_nodesets(layout, body)}


def parameter(one: Parameter) -> Json:
    """Return a pipeline parameter, which people may set when they enqueue manually (JSON)."""
    return {
        "name": one.name,
        "type": one.type,
        "description": one.description or None,
        "values": list(one.values) or None,
        "default": one.default,
        "required": one.required,
    }


def _several(body: Table, key: str) -> list[Any]:
    """Return the values of a key as a list, without tags."""
    found: list[Any] = as_list(deep_plain(body.get(key)))
    return found


def _patterns(body: Table, key: str) -> list[Json]:
    return [
        {"regex": str(one["regex"]), "negate": bool(one.get("negate", False))}
        if isinstance(one, dict)
        else {"regex": str(one), "negate": False}
        for one in _several(body, key)
    ]


def _required(one: Any) -> Json:
    entry = one if isinstance(one, dict) else {"name": one}
    return {
        "project_name": entry["name"],
        "override_branch": entry.get("override-branch"),
        "override_checkout": entry.get("override-checkout"),
    }


def _filters(body: Table, key: str) -> list[Json] | None:
    if key not in body:
        return None
    filters = ({"name": one} if isinstance(one, str) else one for one in _several(body, key))
    return [{"type": one.get("type", "name"), **({"name": one["name"]} if "name" in one else {})} for one in filters]


def _included(one: Any) -> Json:
    entry = one if isinstance(one, dict) else {"name": one}
    return {
        "name": entry["name"],
        "project_name": entry.get("project"),
        "required": entry.get("required", True),
        "use_ref": entry.get("use-ref", True),
    }


def _dependency(one: Any) -> Json:
    entry = one if isinstance(one, dict) else {"name": one}
    return {"name": entry["name"], "soft": entry.get("soft", False)}


def _books(layout: Layout, stanza: Stanza, *, attaching: bool) -> Json:
    books = Books(layout)
    try:
        # Collect the playbooks of this variant only: the answer describes a stanza, not the job merged from all of
        # them.
        books.add(stanza, stanza.body, 0, attaching)
    except UnknownSecret:
        books = Books(layout)  # the configuration's errors report the secret
    secrets = list(_secrets(stanza.body))
    post, cleanup = ([b for b in books.post_run if b.ignore_result is late] for late in (False, True))
    phases = {"run": books.run, "pre_run": books.pre_run, "post_run": post, "cleanup_run": cleanup}
    playbooks: Json = {name: [_book(book, stanza, secrets) for book in found] for name, found in phases.items()}
    # The implicit role of a built-in job has no project.
    return {"roles": [_role(role) for role in books.roles if role.project], **playbooks}


def _book(book: Playbook, stanza: Stanza, secrets: list[Json]) -> Json:
    return {
        "path": book.path,
        "roles": [_role(role) for role in book.roles],
        "secrets": secrets,
        "semaphores": [{"name": name} for name in book.semaphores],
        "cleanup": book.cleanup,
        "preserve_home_paths": list(book.preserve_home_paths),
        "source_context": context_of(stanza),
    }


def _role(role: JobRole) -> Json:
    return {
        "target_name": role.name,
        "type": "zuul",
        "project_canonical_name": role.project,
        "implicit": role.implicit,
    }


def _secrets(body: Table) -> Iterator[Json]:
    """Yield the names of the secrets that each playbook of the variant may read."""
    for one, _ in entries(body.get("secrets"), 0):
        name = one if isinstance(one, str) else one["name"]
        yield {"name": name if isinstance(one, str) else one.get("secret", name), "alias": name}


def _nodesets(layout: Layout, body: Table) -> Json:
    given = body.get("nodeset")
    if given is None:
        return {}
    try:
        found = flattened_nodesets(layout, given)
    except UnknownNodeset:
        # The errors of the configuration report this, too; name at least the nodeset that is missing.
        found = [Nodeset(given if isinstance(given, str) else "")]
    nodesets = [nodeset(one) for one in found]
    # As in Zuul's answers, there is one of the two keys, never both.
    return {"nodeset": nodesets[0]} if len(nodesets) == 1 else {"nodeset_alternatives": nodesets}


def nodeset(found: Nodeset) -> Json:
    """Return a nodeset (JSON) without any machines assigned."""
    nodes = [
        {
            "name": node.name[0],
            "aliases": list(node.name[1:]),
            "label": node.label,
            "id": None,
            "state": "unknown",
            "hold_job": None,
            "comment": None,
            "user_data": None,
            "tenant_name": None,
            "requestor": None,
        }
        for node in found.nodes
    ]
    return {"name": found.name, "nodes": nodes, "groups": msgspec.to_builtins(found.groups), "alternatives": []}
