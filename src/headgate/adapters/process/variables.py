"""Build the `zuul` variable and the environment of jobs."""

from __future__ import annotations

import base64
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import yaml
from yaml.constructor import SafeConstructor

from headgate.adapters.process.context.places import PlaybookContext
from headgate.adapters.process.returns import RESULT_VARIABLE
from headgate.config.budgets import Budgets
from headgate.config.files.document import composed
from headgate.config.files.source import Wrong
from headgate.config.keys.job import RESERVED_VARS
from headgate.config.model import FrozenJob, Playbook
from headgate.gate.rules.refs import variables as ref_variables
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import BuildSpec, RepoState


def project(name: str, scheme: str = "golang") -> dict[str, Any]:
    """Return the description of a project; `name` is canonical, and `scheme` determines its directory (`host/org/app`,
    `app`, or `host/org/org%2Fapp`).  JSON."""
    host, _, rest = name.partition("/")
    places = {"flat": rest.rpartition("/")[2], "unique": f"{name.rpartition('/')[0]}/{quote(rest, safe='')}"}
    return {
        "name": rest,
        "short_name": rest.rpartition("/")[2],
        "canonical_hostname": host,
        "canonical_name": name,
        "src_dir": f"src/{places.get(scheme, name)}",
    }


KUBECONFIG = "KUBECONFIG"
"""Environment variable, for jobs with nodes in a cluster, with the path of the file that gives access to it."""
Plays = Mapping[tuple[str, str, str, bool], list[dict[str, Any]]]
"""Project, branch, path and trust of a playbook -> its roles. JSON."""


def zuul(
    spec: BuildSpec,
    state: RepoState,
    projects: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, str],
    trees: Mapping[str, Mapping[str, str]] | None = None,
    roles: Plays | None = None,
) -> dict[str, Any]:
    """Return the complete variable: the gate's values, and the executor's own; `trees` and `roles` are those that are
    prepared so far. JSON."""
    job = spec.job
    of_change = project(spec.change.project, job.workspace_scheme)
    own = {key: spec.zuul[key] for key in _REF if key in spec.zuul} | {"project": of_change}
    # A job whose result may be reused must not see the items ahead, or another run could have another result.
    chain = tuple(item for item in state.chain if item.item == spec.item or not job.reuse)
    members, us = Counter(item.item for item in state.chain), (spec.item, spec.change.project, spec.change.ref)
    items = [
        (own if (item.item, item.project, item.ref) == us else _item(item, job.workspace_scheme))
        | ({"bundle_id": item.item} if members[item.item] > 1 else {})
        for item in chain
    ]
    if not chain or chain[-1].item != spec.item:
        items.append(own)
    optional = {"override_checkout": job.override_checkout} if job.override_checkout else {}
    return {
        "ref": spec.change.ref,
        "message": base64.b64encode(spec.change.message.encode()).decode(),
        **spec.zuul,
        "project": of_change,
        "projects": projects,
        "items": items,
        "build_refs": [own, *(_ref(change, job.workspace_scheme) for change in spec.also)],
        "buildset_refs": [_ref(change, job.workspace_scheme) for change in spec.together] or [own],
        "executor": places,
        "workspace_checkout": checked_out(job),
        "include_vars": [{"name": f.name, "project": f.project or spec.change.project} for f in job.include_vars],
        "resources": {},
        "playbook_context": {
            "playbook_projects": trees or {},
            "pre_playbooks": [_book(b, roles or {}) for b in job.pre_run],
            "playbooks": [_book(b, roles or {}) for b in job.run],
            "post_playbooks": [_book(b, roles or {}) for b in job.post_run],
        },
        "_inheritance_path": list(job.inheritance),
        "ansible_version": job.ansible_version,
        "deduplicate": job.deduplicate,
        **({"image_build_name": job.image_build_name} if job.image_build_name else {}),
        **optional,
    }


def checked_out(job: FrozenJob) -> bool:
    """Return whether the repositories of the work directory have files. `auto` means that they do if the job runs here,
    without nodes."""
    return job.workspace_checkout is True or (job.workspace_checkout == "auto" and not job.nodeset.nodes)


_REF = (
    "branch", "tag", "ref", "change", "patchset", "change_message", "change_url", "topic", "commit_id", "oldrev",
    "newrev",
)  # fmt: skip


def _ref(change: Change, scheme: str) -> dict[str, Any]:
    return {**ref_variables(change), "project": project(change.project, scheme)}


def _item(item: MergeItem, scheme: str) -> dict[str, Any]:
    topic = item.topic or ("" if item.number else item.ref.removeprefix(f"refs/for/{item.branch}/"))
    return {
        "project": project(item.project, scheme),
        "branch": item.branch,
        "ref": item.ref,
        "change": item.number or topic,
        "topic": topic,
        "patchset": item.patchset or item.commit,
        "change_url": item.url,
        "commit_id": item.commit,
        "change_message": item.message,
    }


def _book(book: Playbook, roles: Plays) -> dict[str, Any]:
    offered = roles.get((book.project, book.branch, book.path, book.trusted), [])
    return {"path": f"{book.project}/{book.path}", "branch": book.branch, "trusted": book.trusted, "roles": offered}


INCLUDED_SIZE_MAX_BYTES = 1_000_000
INCLUDED = Budgets(INCLUDED_SIZE_MAX_BYTES, values_max=100_000, written_max_bytes=10 * INCLUDED_SIZE_MAX_BYTES)


def included(path: Path) -> dict[str, Any]:
    """Return the variables in a YAML or JSON file. Raise ValueError, OSError."""
    if path.stat().st_size > INCLUDED_SIZE_MAX_BYTES:
        raise ValueError(f"it is larger than {INCLUDED_SIZE_MAX_BYTES // 1_000} kB")
    try:
        # Use the same reader as for configuration: it counts values, so that aliases cannot multiply into gigabytes.
        node = composed(path.read_bytes().decode("utf-8-sig"), INCLUDED)
        found = None if node is None else SafeConstructor().construct_document(node)
    except Wrong as wrong:
        raise ValueError(f"line {wrong.line}: {wrong}") from wrong
    except (yaml.YAMLError, RecursionError, UnicodeError) as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError("it is not a mapping of names to values")
    if taken := sorted(RESERVED_VARS & found.keys()):
        raise ValueError(f"it sets {', '.join(taken)}, which is reserved")
    try:
        # Convert to JSON and back, since YAML has dates, sets and binary values that nothing after this expects.
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it has values that are not JSON: {error}") from error
    return plain


def phase(phase: str, index: int, book: Any, outcome: str | None, *, will_retry: bool) -> dict[str, Any]:
    """Return a playbook's variables about its phase and, after the run, about the run's result. JSON."""
    own = {
        "zuul_execution_phase": phase,
        "zuul_execution_phase_index": str(index),
        "zuul_execution_trusted": str(book.trusted),
        "zuul_execution_canonical_name_and_path": f"{book.project}/{book.path}",
        "zuul_execution_branch": book.branch,
    }
    if phase == "post":
        own |= {"zuul_success": str(outcome == "SUCCESS"), "zuul_will_retry": str(will_retry)}
    return own


def environment(
    spec: BuildSpec,
    work: Path,
    context: PlaybookContext,
    phase_variables: Mapping[str, Any],
    programs: Iterable[Path] = (),
) -> dict[str, str]:
    """Return only the environment variables that a job needs; directories of `programs` come first in its path."""
    places = (*programs, Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]),
        "HOME": str(context.home),
        "TMPDIR": str(context.tmp),
        **({KUBECONFIG: str(context.kubeconfig)} if context.clusters else {}),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        # git refuses repositories of other users, and the work directory changes its owner between playbooks.
        **_git({"safe.directory": "*", **(_NO_PROGRAMS if context.careful else {})}),
        RESULT_VARIABLE: str(work / "results.json"),
        "ZUUL_PROJECT": spec.change.project,
        "ZUUL_BRANCH": spec.change.branch,
        "ZUUL_CHANGE": spec.change.name,
        "ZUUL_REF": spec.change.ref,
        **{name: spec.zuul[of] for name, of in _OF_REFS.items() if of in spec.zuul},
        "ZUUL_PIPELINE": spec.pipeline,
        "ZUUL_BUILD": spec.build,
        "ZUUL_JOB": spec.job.name,
        "ZUUL_TENANT": spec.tenant,
        "ZUUL_SRC_ROOT": str(work / "src"),
        "ZUUL_LOG_DIR": str(work / "logs"),
        **{name.upper(): value for name, value in phase_variables.items() if name in _PHASE_VARIABLES},
    }


_NO_PROGRAMS = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
"""Settings that keep git from running programs that a repository in the work directory names."""


def _git(settings: Mapping[str, str]) -> dict[str, str]:
    """Return variables with these settings of git, which override those of every file."""
    numbered = enumerate(settings.items())
    named = {
        f"GIT_CONFIG_{word}_{n}": value
        for n, pair in numbered
        for word, value in zip(("KEY", "VALUE"), pair, strict=True)
    }
    return {"GIT_CONFIG_COUNT": str(len(settings)), **named}


_OF_REFS = {"ZUUL_TAG": "tag", "ZUUL_OLDREV": "oldrev", "ZUUL_NEWREV": "newrev"}
_PHASE_VARIABLES = ("zuul_execution_phase", "zuul_success", "zuul_will_retry")
