"""Check a job stanza, or the attributes of a job in a project's section."""

from __future__ import annotations

import re
from typing import Any

from headgate.config.files.check import entries, plain, table
from headgate.config.files.document import Table
from headgate.config.files.source import Wrong, nearest
from headgate.config.keys.job import (
    ANSIBLE_VERSIONS,
    CONTROLLED,
    HOME_PATHS_FORBIDDEN,
    JOB,
    RESERVED_VARS,
)
from headgate.config.kinds.image import BadImageName, ImageName
from headgate.config.kinds.nodeset import check_nodeset
from headgate.config.patterns import BadPattern, compiled

BOOK_KEYS = ("run", "pre-run", "post-run", "cleanup-run")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


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
        # Unlike other patterns it meets every line of output, so it must be matched in linear time.
        _re2(pattern, at)


def _image(image: str | Table, line: int) -> None:
    if not isinstance(image, str):
        parts = image["build"].split("/")
        # The executor opens this path in a tree that the proposer wrote.
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
    if body.get("post-review") is False:
        raise Wrong("post-review can be set to true only", body.at("post-review"))
    if 0 < body.get("timeout", 0) < body.get("pre-timeout", 0):
        raise Wrong("pre-timeout is longer than timeout", body.at("pre-timeout"), "Pre-Timeout Exceeds Timeout")
    if "ansible-version" in body and str(body["ansible-version"]) not in ANSIBLE_VERSIONS:
        known = ", ".join(ANSIBLE_VERSIONS)
        text = f"there is no Ansible version {body['ansible-version']}; there are {known}"
        raise Wrong(text, body.at("ansible-version"))
    for secret, at in entries(body.get("secrets"), body.at("secrets")):
        name = secret if isinstance(secret, str) else secret["name"]
        if name in ("zuul", "nodepool"):
            raise Wrong(f"a secret cannot be named {name}: that variable has another meaning", at)
        if not _WORD.fullmatch(name):
            raise Wrong(f"a secret cannot be named {name!r} in a job: letters, digits and _ only", at)


def _variables(body: Table) -> None:
    for key in ("vars", "extra-vars"):
        _names(plain(body.get(key)), body.at(key))
    for key in ("host-vars", "group-vars"):
        for name, own in (plain(body.get(key)) or {}).items():
            if not isinstance(own, dict):
                raise Wrong(f"{key} of {name!r} must be a mapping", plain(body[key]).at(name))
            _names(own, body.at(key))


def _names(found: Any, line: int) -> None:
    for name in found or {}:
        if not _VARIABLE.fullmatch(name) or name in RESERVED_VARS:
            at = found.at(name) if isinstance(found, Table) else line
            why = "it is reserved" if name in RESERVED_VARS else "letters, digits and _, beginning with a letter"
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
                    raise Wrong(f"the semaphore {name!r} is both the job's and its playbook's", at)


def semaphore_names(body: Table) -> list[tuple[str, bool]]:
    """Return (name, resources-first) of every semaphore that the stanza names for the whole job."""
    found = [s for key in ("semaphore", "semaphores") for s, _ in entries(body.get(key), 0)]
    return [(s, False) if isinstance(s, str) else (s["name"], s.get("resources-first", False)) for s in found]


def _control(body: Table) -> None:
    control = body.get("attribute-control", Table(0))
    for name, rule in control.items():
        if name not in CONTROLLED:
            raise Wrong(f"{name!r} cannot be controlled{nearest(name, CONTROLLED)}", control.at(name))
        if not isinstance(rule, dict) or set(rule) - {"final"} or not isinstance(rule.get("final", True), bool):
            raise Wrong(f"what attribute-control says of {name} is `final: true`", control.at(name))


def _re2(pattern: str, line: int) -> None:
    try:
        found = compiled(pattern)
    except BadPattern as bad:
        raise Wrong(f"failure-output is wrong: {bad}", line) from bad
    if found.legacy:
        raise Wrong(f"failure-output must be an RE2 pattern, which {pattern!r} is not: {found.legacy}", line)
