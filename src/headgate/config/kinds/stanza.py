"""Check one stanza independently of its tenant and of all other stanzas."""

from __future__ import annotations

import re
from typing import Any

from headgate.base.hints import HintedText, nearest
from headgate.config.files.checks import Keys, StanzaKey, anything, as_list, entries, idle, plain, table
from headgate.config.files.document import Encrypted, SecretClosed, SecretOpener, Table, Tagged, chunks_of
from headgate.config.files.source import MEANING, Wrong
from headgate.config.keys import objects
from headgate.config.keys.job import ANSIBLE_VERSIONS, CONTROLLED, HOME_PATHS_FORBIDDEN, JOB, RESERVED_VARS
from headgate.config.kinds.image import BadImageName, ImageName
from headgate.config.patterns import BadPattern, compiled

EXECUTOR_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names that mean the executor itself in an Ansible inventory."""
_SPECIAL = re.compile(r"[\[\]{}:,;!&@\s]")
"""Characters that have a special meaning in the names of an Ansible inventory: ranges, ports, lists."""
ALTERNATIVES_DEPTH_MAX = 50
"""Largest number of levels of nested inline alternatives."""
BOOK_KEYS = ("run", "pre-run", "post-run", "cleanup-run")
"""Keys of a job that list playbooks."""
_WORD = re.compile(r"[A-Za-z0-9_]+")
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
TABLES: dict[str, Keys] = {
    "pipeline": objects.PIPELINE,
    "queue": objects.QUEUE,
    "semaphore": objects.SEMAPHORE,
    "secret": objects.SECRET,
    "image": objects.IMAGE,
    "flavor": objects.FLAVOR,
    "label": objects.LABEL,
    "pragma": objects.PRAGMA,
}
"""Kind of stanza -> its keys, for the kinds that have no separate function below."""
_OPEN_TABLES = {"section": objects.SECTION, "provider": objects.PROVIDER}
"""Kind of stanza -> its keys, for the kinds that may have further keys, which depend on a driver."""
_DRIVER_KEY = StanzaKey(anything)


def check_stanza(
    kind: str, body: Any, line: int, project: str, opener: SecretOpener | None, warnings: list[Wrong]
) -> None:
    """Check a stanza, and add warnings to `warnings`. If there is an `opener`, its secrets must open with the key of
    `project` (canonical name). Raise Wrong."""
    match kind:
        case "job":
            check_job(body, line, warnings)
        case "project" | "project-template":
            check_project(kind, body, line, warnings)
        case "nodeset":
            check_nodeset(body, line, warnings, named=True)
        case "section" | "provider":
            known = _OPEN_TABLES[kind]
            # The driver may be set in the parent section. Its keys are checked once both are combined.
            driver = {key: _DRIVER_KEY for key in body if key not in known} if isinstance(body, Table) else {}
            table(body, {**known, **driver}, kind, warnings, line)
        case _:
            table(body, TABLES[kind], kind, warnings, line)
    if kind == "image" and body.get("type") == "cloud" and "rebuild-age" in body:
        warnings.append(idle("rebuild-age", "an image of type cloud is not built", body.at("rebuild-age")))
    if kind == "provider" and "flavors" in body:
        raise Wrong("a provider has no flavors of its own: set them in its section", body.at("flavors"))
    if kind == "queue":
        _queue(body)
    elif kind == "secret":
        _secret(body, project, opener)
    # A ceiling of null means none.
    elif kind == "pipeline" and (body.get("window-ceiling") or body.get("window-floor", 3)) < body.get(
        "window-floor", 3
    ):
        raise Wrong("window-ceiling is below window-floor", body.at("window-ceiling"))


def _queue(body: Table) -> None:
    if "type" in body and "per-branch" in body:
        raise Wrong("a queue has either type or the deprecated per-branch, not both", body.at("per-branch"))
    # Changes of one topic need each other, which is a circle.
    if body.get("dependencies-by-topic") and not body.get("allow-circular-dependencies"):
        raise Wrong("dependencies-by-topic needs allow-circular-dependencies", body.at("dependencies-by-topic"))


def _secret(body: Table, project: str, opener: SecretOpener | None) -> None:
    if ("data" in body) == ("oidc" in body):
        raise Wrong("a secret has either data or oidc", body.line)
    if "data" in body:
        _open(body["data"], body.at("data"), project, opener)


def _open(value: Any, line: int, project: str, opener: SecretOpener | None) -> None:
    """Raise Wrong for the first encrypted text in the value that cannot be opened. Without an `opener`, check only the
    form of encrypted texts."""
    if isinstance(value, Tagged):
        value = value.value
    if isinstance(value, Encrypted):
        try:
            chunks = chunks_of(value)
            if opener is not None:
                opener.open(project, chunks)
        except SecretClosed as closed:
            text = f"this secret cannot be decrypted: {closed}; encrypt it again with the public key of {project}"
            raise Wrong(text, line, MEANING) from closed
    elif isinstance(value, dict):
        for key, one in value.items():
            _open(one, value.at(key) if isinstance(value, Table) else line, project, opener)
    elif isinstance(value, list):
        for one in value:
            _open(one, line, project, opener)


def check_nodeset(body: Any, line: int, warnings: list[Wrong], *, named: bool = False, depth: int = 0) -> None:
    """Check a nodeset. Raise Wrong."""
    table(body, objects.NODESET if named else objects.INLINE_NODESET, "nodeset", warnings, line)
    # The check is recursive, so a deeper file could exhaust the interpreter's stack.
    if depth > ALTERNATIVES_DEPTH_MAX:
        raise Wrong(f"alternatives are nested more than {ALTERNATIVES_DEPTH_MAX} levels deep", body.line)
    if "alternatives" in body and ("nodes" in body or "groups" in body):
        raise Wrong("a nodeset has either alternatives, or nodes and groups", body.at("alternatives"))
    names = _nodes(body, warnings)
    _groups(body, names, warnings)
    for other, at in entries(body.get("alternatives"), body.at("alternatives")):
        if isinstance(other, Table):
            check_nodeset(other, at, warnings, depth=depth + 1)


def misread(name: str, what: str) -> str:
    """Return why a name would be misread in an Ansible inventory, or an empty string if it would not."""
    known = _SPECIAL.search(name)
    if name not in EXECUTOR_NAMES and not known:
        return ""
    why = (
        "this name means the executor"
        if known is None or name in EXECUTOR_NAMES
        else f"{known[0]!r} has a special meaning in an inventory"
    )
    return f"jobs cannot run on a {what} named {name!r}: {why}"


def _check_name(name: str, what: str, line: int, warnings: list[Wrong]) -> None:
    """Refuse the name localhost, and warn about a name that may be misread. Raise Wrong."""
    # Playbooks that name `localhost` mean the executor, but would run on the machine.
    if name == "localhost":
        raise Wrong(f"a {what} cannot be named {name}: this name means the executor", line)
    if why := misread(name, what):
        warnings.append(Wrong(why, line, severity="warning"))


def _nodes(body: Table, warnings: list[Wrong]) -> set[str]:
    names: set[str] = set()
    for node, _ in entries(body.get("nodes"), body.at("nodes")):
        for name in as_list(node["name"]):
            _check_name(name, "node", node.at("name"), warnings)
            if name in names:
                raise Wrong(f"there are two nodes named {name!r}", node.at("name"), "Duplicate Node")
            names.add(name)
    return names


def _groups(body: Table, nodes: set[str], warnings: list[Wrong]) -> None:
    known: set[str] = set()
    for group, _ in entries(body.get("groups"), body.at("groups")):
        name = group["name"]
        _check_name(name, "group", group.at("name"), warnings)
        if name in known:
            raise Wrong(f"there are two groups named {name!r}", group.at("name"), "Duplicate Nodeset Group")
        known.add(name)
        for node, at in entries(group["nodes"], group.at("nodes")):
            if node not in nodes:
                text = f"the node {node!r} does not exist, but the group {name!r} names it"
                raise Wrong(text, at, "Node From Group Not Found")


def check_job(body: Any, line: int, warnings: list[Wrong], what: str = "job", *, named: bool = True) -> None:
    """Check a job. Raise Wrong."""
    table(body, JOB, what, warnings, line)
    if named and "name" not in body:
        raise Wrong("this job lacks 'name'", body.line)
    _flags(body)
    _variables(body)
    _playbooks(body, warnings)
    _control(body)
    if isinstance(body.get("nodeset"), Table):
        check_nodeset(body["nodeset"], body.at("nodeset"), warnings)
    for path, at in entries(body.get("preserve-home-paths"), body.at("preserve-home-paths")):
        if path in HOME_PATHS_FORBIDDEN:
            raise Wrong(f"{path} of the home directory cannot be preserved", at)
    if "image" in body:
        _image(body["image"], body.at("image"))
    for pattern, at in entries(body.get("failure-output"), body.at("failure-output")):
        # Unlike other patterns, it is matched against every line of output, so matching must take linear time.
        _re2(pattern, at)


def _image(image: str | Table, line: int) -> None:
    if not isinstance(image, str):
        parts = image["build"].split("/")
        # The executor opens this path in a directory whose content the proposer chose.
        if not set(parts).isdisjoint(("", ".", "..")):
            raise Wrong(f"image: {image['build'][:80]!r} is not a file of the repository", image.at("build"))
        return
    try:
        ImageName.read(image)
    except BadImageName as bad:
        raise Wrong(f"image: {bad}", line) from bad


def _flags(body: Table) -> None:
    if body.get("intermediate") and not body.get("abstract"):
        raise Wrong("an intermediate job must also be abstract", body.at("intermediate"))
    # As in Zuul, a variant can only restrict a job further.
    if body.get("post-review") is False:
        raise Wrong("post-review can be set to true only", body.at("post-review"))
    # With a timeout of 0 or less, the limit of the executor applies, which is unknown here.
    if 0 < body.get("timeout", 0) < body.get("pre-timeout", 0):
        raise Wrong("pre-timeout is greater than timeout", body.at("pre-timeout"), "Pre-Timeout Exceeds Timeout")
    if "ansible-version" in body and str(body["ansible-version"]) not in ANSIBLE_VERSIONS:
        text = f"there is no Ansible version {body['ansible-version']}"
        raise Wrong(HintedText(text, f"there are: {', '.join(ANSIBLE_VERSIONS)}"), body.at("ansible-version"))
    for secret, at in entries(body.get("secrets"), body.at("secrets")):
        name = secret if isinstance(secret, str) else secret["name"]
        # Secrets become variables, and every job already has these two.
        if name in ("zuul", "nodepool"):
            raise Wrong(f"a secret cannot be named {name}: this variable has another meaning", at)
        if not _WORD.fullmatch(name):
            raise Wrong(f"a secret cannot be named {name!r} in a job: use only letters, digits and _", at)


def _variables(body: Table) -> None:
    for key in ("vars", "extra-vars"):
        _check_variable_names(plain(body.get(key)), body.at(key))
    for key in ("host-vars", "group-vars"):
        for name, own in (plain(body.get(key)) or {}).items():
            if not isinstance(own, dict):
                raise Wrong(f"{key} of {name!r} must be a mapping", plain(body[key]).at(name))
            _check_variable_names(own, body.at(key))


def _check_variable_names(found: Any, line: int) -> None:
    for name in found or {}:
        if not _VARIABLE.fullmatch(name) or name in RESERVED_VARS:
            at = found.at(name) if isinstance(found, Table) else line
            why = "it is reserved" if name in RESERVED_VARS else "use letters, digits and _, beginning with a letter"
            raise Wrong(f"{name!r} cannot be the name of a variable: {why}", at)


def _playbooks(body: Table, warnings: list[Wrong]) -> None:
    if "cleanup-run" in body:
        text = "cleanup-run is deprecated: list the playbook under post-run with `cleanup: true`"
        warnings.append(Wrong(text, body.at("cleanup-run"), "Cleanup Run Deprecation", "warning"))
    own = {name for name, _ in semaphore_names(body)}
    for key in BOOK_KEYS:
        for book, at in entries(body.get(key), body.at(key)):
            for name, _ in entries(book.get("semaphores"), at) if isinstance(book, Table) else ():
                if name in own:
                    raise Wrong(f"both the job and its playbook name the semaphore {name!r}", at)


def semaphore_names(body: Table) -> list[tuple[str, bool]]:
    """Return (name, resources-first) of every semaphore that the stanza names for the whole job."""
    found = [s for key in ("semaphore", "semaphores") for s, _ in entries(body.get(key), 0)]
    return [(s, False) if isinstance(s, str) else (s["name"], s.get("resources-first", False)) for s in found]


def _control(body: Table) -> None:
    control = body.get("attribute-control", Table(0))
    for name, rule in control.items():
        if name not in CONTROLLED:
            raise Wrong(HintedText(f"{name!r} cannot be controlled", nearest(name, CONTROLLED)), control.at(name))
        if not isinstance(rule, dict) or set(rule) - {"final"} or not isinstance(rule.get("final", True), bool):
            raise Wrong(f"attribute-control of {name} must be `final: true` or `final: false`", control.at(name))


def _re2(pattern: str, line: int) -> None:
    try:
        found = compiled(pattern)
    except BadPattern as bad:
        raise Wrong(f"failure-output is not a valid pattern: {bad}", line) from bad
    if found.legacy:
        raise Wrong(f"failure-output must be an RE2 pattern, but {pattern!r} is not: {found.legacy}", line)


def check_project(kind: str, body: Any, line: int, warnings: list[Wrong]) -> None:
    """Check a project or template. Raise Wrong."""
    if not isinstance(body, Table):
        raise Wrong(f"a {kind} must be a mapping", line)
    own = objects.PROJECT if kind == "project" else objects.TEMPLATE
    # Check the own keys apart: `table` would report every pipeline as an unknown key.
    head = Table(body.line)
    for key, value in body.items():
        if key in own:
            head[key], head.lines[key] = value, body.at(key)
        else:
            _section(kind, key, value, body.at(key), warnings)
    table(head, own, kind, warnings, line)
    name = body.get("name", "")
    # The declared check accepts any name; only one that begins with ^ is a pattern.
    if kind == "project" and name.startswith("^"):
        _pattern(name, body.at("name"), warnings)


def _pattern(name: str, line: int, warnings: list[Wrong]) -> None:
    try:
        legacy = compiled(name).legacy
    except BadPattern as bad:
        raise Wrong(f"the name of a project is not a valid pattern: {bad}", line) from bad
    if legacy:
        text = f"the name of a project is a pattern that RE2 does not support: {name!r}: {legacy}"
        warnings.append(Wrong(text, line, "Regex Deprecation", "warning"))


def _section(kind: str, pipeline: str, section: Any, line: int, warnings: list[Wrong]) -> None:
    # Every key that a project does not have itself names a pipeline, so a misspelt key arrives here, too.
    what = f"pipeline section ({pipeline!r} is not a key of a {kind})"
    table(section, objects.PROJECT_PIPELINE, what, warnings, line)
    for job, at in entries(section.get("jobs"), section.at("jobs")):
        if not isinstance(job, Table):
            continue
        if len(job) != 1:
            raise Wrong("a job of a project is a name, or a mapping of one name to its attributes", at)
        ((name, attributes),) = job.items()
        check_job(attributes, job.at(name), warnings, f"job of this project ({name})", named=False)


def section_jobs(section: Table) -> list[tuple[str, Table, int]]:
    """Return (name, attributes, line) of every job of a checked section."""
    found: list[tuple[str, Table, int]] = []
    for job, at in entries(section.get("jobs"), section.at("jobs")):
        if isinstance(job, Table):
            ((name, attributes),) = job.items()
            found.append((name, attributes, job.at(name)))
        else:
            found.append((job, Table(at), at))
    return found
