"""Decide which of a tenant's configuration, as it was read, is put into effect, and report what is held back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.model import ConfigError
from headgate.config.tenants import Protection
from headgate.gate.change import HEADS, Change
from headgate.gate.work import ReportRequest
from headgate.map.records import HeldConfiguration, LayoutRecord
from headgate.recipes.requestforms import Request
from headgate.services.configuration import Configuration, protection, stored_branches
from headgate.services.context import Context
from headgate.services.publisher.names import published_event
from headgate.services.scheduler.turn import TurnPart

log = logging.getLogger("headgate.tenant")

NOTES_MAX = 20
"""Limit of branches held back in one reading whose authors get a note."""
ERRORS_MAX, NOTE_MAX = 10, 20_000
"""Limits of errors in a note, and of its characters."""


class InForce(NamedTuple):
    """Hold what the next layout record is to contain."""

    branches: dict[str, dict[str, str]]
    held: dict[str, dict[str, HeldConfiguration]]
    protections: dict[str, Protection]


def in_force(
    context: Context, configuration: Configuration, before: LayoutRecord | None, projects: Mapping[str, object]
) -> InForce:
    """Return the stored content that is to take effect, and the content that is held back because of errors."""
    now = {project: stored_branches(context, project) for project in projects}
    branches = {project: {branch: one.digest for branch, one in found.items()} for project, found in now.items()}
    found_of = ((source.project, protection(context, source)) for source in configuration.tenant.projects)
    protections = {project: rules for project, rules in found_of if rules is not None}
    # There is no earlier content to keep, so even faulty content takes effect.
    if before is None:
        return InForce(branches, {}, protections)
    fresh = {p: dict(_fresh(found, before.branches.get(p, {}))) for p, found in branches.items()}
    held: dict[str, dict[str, HeldConfiguration]] = {}
    for project, branch in sorted(configuration.unfit(fresh, protections)):
        read, known = now[project][branch], before.held.get(project, {}).get(branch)
        # The same content keeps its time and commit, so its author is told only once.
        same = known is not None and known.digest == read.digest
        own = known if known is not None and same else HeldConfiguration(read.commit, read.digest, context.now_ms())
        held.setdefault(project, {})[branch] = own
        branches[project][branch] = before.branches[project][branch]
    return InForce(branches, held, protections)


def _fresh(now: Mapping[str, str], before: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # A branch that is new takes nothing away, whatever its errors, so it is never held back.
    return ((branch, digest) for branch, digest in now.items() if before.get(branch, digest) != digest)


def expected(record: LayoutRecord, project: str) -> dict[str, str]:
    """Return branch -> digest of the project's stored content when the record was made."""
    held = {branch: one.digest for branch, one in record.held.get(project, {}).items()}
    return {**record.branches.get(project, {}), **held}


def announcements(
    context: Context, configuration: Configuration, before: LayoutRecord | None, now: InForce
) -> list[TurnPart]:
    """Announce configuration that is held back now, or in force again. Return the operations that notify others;
    repeating them changes nothing."""
    tenant, former = configuration.tenant, before.held if before is not None else {}
    for project, branches in former.items():
        for branch in branches:
            if branch not in now.held.get(project, {}):
                log.info("tenant %s: %s %s: what it has is in force again", tenant.name, project, branch)
    pieces = list[TurnPart]()
    fresh = [
        (p, b, one) for p, found in now.held.items() for b, one in found.items() if former.get(p, {}).get(b) != one
    ]
    for number, (project, branch, one) in enumerate(fresh):
        text = "tenant %s: %s %s: what was pushed as %s is not in force, as it would take away what is there"
        log.error(text, tenant.name, project, branch, one.commit[:12])
        source = tenant.by_canonical.get(project)
        # Somebody may push a faulty file to hundreds of branches; the log has them all.
        if source is None or number >= NOTES_MAX:
            continue
        change = Change(source.connection, project, branch, commit=one.commit, ref=f"{HEADS}{branch}")
        # The digest is part of the id: other content is a new reason to write, a repeated reading is none.
        id = derived("held", tenant.name, project, branch, one.digest)
        work = ReportRequest(change, f"tenant {tenant.name}", _note(configuration.wrong_with(project, branch)))
        meta = {"tenant": tenant.name, "pipeline": "", "change": change.id, "project": project}
        pieces.append(TurnPart(context.merges.submit(Request(id, meta=meta), msgspec.json.encode(work))))
        event = published_event("configuration-held", id, tenant.name, "", change, "", one.since_ms)
        pieces.append(TurnPart(context.published(replace(event, message=work.note))))
    return pieces


def _note(errors: tuple[ConfigError, ...]) -> str:
    """Return the note for the person who pushed the configuration."""
    shown = [error.render() for error in errors[:ERRORS_MAX]]
    more = [f"There are {len(errors) - ERRORS_MAX} more errors."] if len(errors) > ERRORS_MAX else []
    first = (
        "The configuration of this branch is not in force: as it is, it would take away what is there. What the "
        "branch had before stays in force until it is mended, be it by a push or by a change that lands."
    )
    return "\n\n".join([first, *shown, *more])[:NOTE_MAX]
