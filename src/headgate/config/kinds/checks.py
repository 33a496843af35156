"""Check one stanza of a file by itself, independently of its tenant and of all other stanzas."""

from __future__ import annotations

from typing import Any

from headgate.config.files.check import Keys, StanzaKey, anything, idle, table
from headgate.config.files.document import Encrypted, Table, Tagged
from headgate.config.files.source import MEANING, Wrong
from headgate.config.keys import objects
from headgate.config.keys.pipeline import PIPELINE
from headgate.config.kinds.job import check_job
from headgate.config.kinds.nodeset import check_nodeset
from headgate.config.kinds.project import check_project
from headgate.config.secrets import SecretClosed, SecretOpener, chunks_of

TABLES: dict[str, Keys] = {
    "pipeline": PIPELINE,
    "queue": objects.QUEUE,
    "semaphore": objects.SEMAPHORE,
    "secret": objects.SECRET,
    "image": objects.IMAGE,
    "flavor": objects.FLAVOR,
    "label": objects.LABEL,
    "pragma": objects.PRAGMA,
}
_OPEN_TABLES = {"section": objects.SECTION, "provider": objects.PROVIDER}
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
            # The driver may be known only from a section above, so its keys are checked once both are combined.
            driver = {key: _DRIVER_KEY for key in body if key not in known} if isinstance(body, Table) else {}
            table(body, {**known, **driver}, kind, warnings, line)
        case _:
            table(body, TABLES[kind], kind, warnings, line)
    if kind == "image" and body.get("type") == "cloud" and "rebuild-age" in body:
        warnings.append(idle("rebuild-age", "an image of type cloud is not built", body.at("rebuild-age")))
    if kind == "provider" and "flavors" in body:
        raise Wrong("a provider has no flavors: they are those of its section", body.at("flavors"))
    if kind == "queue":
        _queue(body)
    elif kind == "secret":
        _secret(body, project, opener)
    elif kind == "pipeline" and (body.get("window-ceiling") or body.get("window-floor", 3)) < body.get(
        "window-floor", 3
    ):
        raise Wrong("window-ceiling is below window-floor", body.at("window-ceiling"))


def _queue(body: Table) -> None:
    if "type" in body and "per-branch" in body:
        raise Wrong("a queue has either type or, as of old, per-branch", body.at("per-branch"))
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
            text = f"this secret cannot be opened: {closed}; encrypt it again with the public key of {project}"
            raise Wrong(text, line, MEANING) from closed
    elif isinstance(value, dict):
        for key, one in value.items():
            _open(one, value.at(key) if isinstance(value, Table) else line, project, opener)
    elif isinstance(value, list):
        for one in value:
            _open(one, line, project, opener)
