"""The change that somebody looks at, or speaks of, and what they may do with it."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from headgate.gate.change import Change
from headgate.rest import HTTPException, HttpRequest
from headgate.web.access import APPROVE, Bearer
from headgate.web.review.speaker import Speaker
from headgate.web.site import Site

_WHO = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+-]{0,99}")
"""Names that can be part of a ref."""
NOBODY = "a review is said by a person: log in, or bring a token that names one; the operator's token is nobody's name"


class Approving(msgspec.Struct, frozen=True):
    """Say whether the caller may approve on the page, and how to approve by a push."""

    may: bool
    why: str
    """Reason why the person may not write remarks, for people; empty when they may."""
    who: str
    """Name under which the person writes remarks."""
    command: str


class ReviewCall(NamedTuple):
    site: Site
    change: Change
    tenant: str
    project: str
    """Its short name, as roles name it."""
    bearer: Bearer | None

    @property
    def who(self) -> str:
        return f"{self.bearer.authenticator}/{self.bearer.name}" if self.bearer is not None else ""

    @property
    def speaker(self) -> Speaker:
        return self.site.speakers.get(self.change.connection, Speaker("", bound=False))

    @property
    def name(self) -> str:
        """Return `<branch>/<topic>`."""
        return f"{self.change.branch}/{self.change.topic}"

    def may(self, permission: str) -> bool:
        found = self.site.tenant(self.tenant).tenant
        subject = {"project": self.project}
        return self.bearer is not None and self.site.access.permits(self.bearer, found, permission, subject)


def asked_about(site: Site, request: HttpRequest, tenant: str, project: str, change: str) -> ReviewCall:
    """Return the change that the request concerns. Raise 400, 404, 409."""
    if not project or not change:
        raise HTTPException("say which: project and change", status_code=400)
    configured = site.tenant(tenant)
    found = site.change(tenant, project, change)
    driver = next((one.driver for one in site.connections if one.name == found.connection), "git")
    # Forges have reviews of their own; two places to review would contradict each other.
    if driver != "git" or not found.is_change:
        where = f": {found.url}" if found.url else ""
        raise HTTPException(f"{found.key} is reviewed where it was proposed{where}", status_code=409)
    source = configured.tenant.find(found.project)
    name = source.name if source is not None else project
    return ReviewCall(site, found, tenant, name, site.access.reader(request))


def nobody(call: ReviewCall) -> str:
    """Return the reason why the caller is not a person; empty: they are one."""
    return "" if call.bearer is not None and call.bearer.authenticator and call.bearer.name else NOBODY


def approving(call: ReviewCall) -> Approving:
    """Return whether the caller may approve here, and under which name."""
    change, speaker, bearer = call.change, call.speaker, call.bearer
    name = bearer.name if bearer is not None else ""
    # The command is meant to be pasted into a shell, so a name with other characters must not be part of it.
    shown = name if _WHO.fullmatch(name) else "YOU"
    ref = f"refs/approvals/{shown}/{call.name}" if speaker.bound else f"refs/approved/{call.name}"
    command = f"git push origin {change.commit}:{ref}"
    if bearer is None or not call.may(APPROVE):
        return Approving(False, "you have no role with the permission approve", "", command)
    if not speaker.auth:
        why = f"nobody has said whose names are those of the git server (people, in [connection {change.connection}])"
        return Approving(False, why, "", command)
    if bearer.authenticator != speaker.auth:
        return Approving(False, f"names of the git server are those of [auth {speaker.auth}]", "", command)
    # Git refuses refs with these parts; the name would be a component of `refs/approvals/WHO/…`.
    if not _WHO.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name or "@{" in name:
        return Approving(False, f"the name {name!r} cannot be part of a ref", "", command)
    return Approving(True, "", name, command)
