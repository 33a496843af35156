"""Let people write remarks on changes of plain git, approve them, and have them tested again, on the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.base.ids import fresh
from headgate.gate.state.gitwork import SayAnswer, SayRequest
from headgate.rest import HTTPException, HttpRequest, JSONBody, post
from headgate.store.types import Op
from headgate.web.access import APPROVE, COMMENT, mark_checked, must_be_json
from headgate.web.review.remarks import PATH_MAX_CHARS, SIDES, TEXT_MAX_CHARS, ReviewRemark, ShownRemark, read, signed
from headgate.web.routes.actions import Hand
from headgate.web.routes.review import ReviewCall, approving, nobody, review_call
from headgate.web.site import NEEDED, Site


class ForRemark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request that a remark be written."""

    project: str
    change: str
    patchset: str
    """Full commit id of the patchset."""
    text: str = ""
    file: str = ""
    side: str = ""
    """old | new"""
    line: int = 0
    reply: str = ""
    """Id of the remark that this one replies to."""
    resolved: bool | None = None
    """Whether a reply marks the other remark as resolved or as open; null: it changes nothing."""


@post("/api/tenant/{tenant:str}/remark", status_code=200, opt={"permission": COMMENT})
async def remark(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForRemark]) -> ShownRemark:
    """Write a remark on the current patchset of a change under the caller's own name. It is stored as a git note in the
    repository. Headgate only.
    """
    call = _speaking(site, request, tenant, data.project, data.change, COMMENT, APPROVE)
    _proposed(call, data.patchset)
    if wrong := _unfit(data):
        raise HTTPException(wrong, status_code=400)
    words = msgspec.structs.asdict(data)
    about = {name: words[name] for name in ("text", "file", "side", "line", "reply", "resolved")}
    written, line = await _line(call, about)
    await _push(call, line, {})
    (remark,), _ = read(await site.review.secret(), call.change.key, written.commit, [line])
    return remark


def _unfit(data: ForRemark) -> str:
    """Return why a remark is invalid; empty: it is valid."""
    if not data.text.strip() and data.resolved is None:
        return "text must not be empty"
    if len(data.text) > TEXT_MAX_CHARS or len(data.file) > PATH_MAX_CHARS:
        return f"text must have at most {TEXT_MAX_CHARS} characters, and file at most {PATH_MAX_CHARS}"
    if data.side not in ("", *SIDES) or not 0 <= data.line < 2**31:
        return "side must be old or new, and line a number"
    if data.resolved is not None and not data.reply:
        return "resolved is allowed only in a reply"
    return ""


class ForApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an approval or a recheck."""

    project: str
    change: str
    patchset: str
    """Full commit id of the patchset; only this commit is approved."""
    withdraw: bool = False
    """Whether to withdraw the approval."""
    reason: str = ""


@post("/api/tenant/{tenant:str}/approve", status_code=200, opt={"permission": APPROVE})
async def approve(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForApproval]) -> bool:
    """Approve exactly this commit of a change of plain git under the caller's own name, or withdraw the approval. It
    counts for the requirements of pipelines like an approval by a push. Headgate only.
    """
    call = _speaking(site, request, tenant, data.project, data.change, APPROVE)
    approval = approving(call)
    if not approval.may:
        raise site.access.refused(403, f"{approval.why}; approve by a push instead: {approval.command}")
    _proposed(call, data.patchset)
    word = {"word": "withdrawn" if data.withdraw else "approved", "text": data.reason[:TEXT_MAX_CHARS]}
    to = "" if data.withdraw else data.patchset
    words = dict.fromkeys(_approvals(call, approval.who), to)

    async def work(besides: Sequence[Op]) -> None:
        # Record the action before the push: a crash in between leaves a record without an outcome, but never an
        # approval without a record of who gave it.
        await site.context.store.commit([], besides)
        await _push(call, (await _line(call, word))[1], words)

    verb = "unapprove" if data.withdraw else "approve"
    subject, details = f"{call.name} of {call.project}", {"commit": data.patchset, "as": approval.who}
    await Hand(site, request, verb, tenant, subject, data.reason, details).does(work)
    return True


@post("/api/tenant/{tenant:str}/recheck", status_code=200, opt={"permission": "enqueue"})
async def recheck(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForApproval]) -> bool:
    """Test a change of plain git again, as a push to `refs/recheck` does. Headgate only."""
    call = review_call(site, request, tenant, data.project, data.change)
    site.allow(request, tenant, "enqueue", project=call.project)
    _proposed(call, data.patchset)

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], besides)
        await _push(call, "", {f"refs/recheck/{call.name}": data.patchset})

    subject, details = f"{call.name} of {call.project}", {"commit": data.patchset}
    await Hand(site, request, "recheck", tenant, subject, data.reason, details).does(work)
    return True


def _speaking(
    site: Site, request: HttpRequest, tenant: str, project: str, change: str, *permissions: str
) -> ReviewCall:
    """Return the call of a person who has one of these permissions for the change. Raise 400, 401, 403, 404, 409,
    415."""
    must_be_json(request)
    bearer = site.access.bearer(request)
    if bearer is None:
        raise site.access.refused(401, NEEDED)
    call = review_call(site, request, tenant, project, change)._replace(bearer=bearer)
    if not any(call.may(one) for one in permissions):
        raise site.access.refused(403, f"you lack the permission {permissions[0]} in tenant {tenant}")
    # The operator's token does not identify a person, so it must not be used to approve or comment.
    if why := nobody(call):
        raise site.access.refused(403, why)
    mark_checked(request)
    return call


def _proposed(call: ReviewCall, patchset: str) -> None:
    """Raise 409 unless the commit is the change's current patchset."""
    change = call.change
    change_state = call.site.status.change_states(call.tenant).now().get(change.key)
    if change_state is None or not change_state.open or change.commit != patchset:
        why = (
            f"the current patchset of {change.key} is {change.commit[:12]}"
            if change_state and change_state.open
            else f"{change.key} is closed"
        )
        raise HTTPException(f"{why}; load the change again", status_code=409)


def _approvals(call: ReviewCall, who: str) -> list[str]:
    """Return the refs to push for an approval: the one under the person's name if the server binds names, and the one
    without a name if a pipeline requires it or no other is known.
    """
    layout, change = call.site.tenant(call.tenant).layouts.landed, call.change
    wanted = any(change.connection in one.require_approved for one in layout.pipelines.values())
    # The same refs that a person would push, so that pipelines need to know only one kind of approval.
    named = [f"refs/approvals/{who}/{call.name}"] if call.speaker.bound else []
    return [*named, *([f"refs/approved/{call.name}"] if wanted or not named else [])]


async def _line(call: ReviewCall, about: Mapping[str, Any]) -> tuple[ReviewRemark, str]:
    """Return a signed remark of the caller, and the line of a note that contains it."""
    site, change, bearer = call.site, call.change, call.bearer
    assert bearer is not None, "the caller has been identified"
    made = ReviewRemark(
        id=fresh(),
        # The signature covers the change, too, so the line cannot be copied to another change with the same commit.
        change=change.key,
        commit=change.commit,
        who=bearer.name[:255],
        realm=bearer.authenticator,
        at_ms=site.context.now_ms(),
        **about,
    )
    found = signed(await site.review.secret(), made)
    return found, msgspec.json.encode(found).decode()


async def _push(call: ReviewCall, line: str, words: Mapping[str, str]) -> None:
    """Have a merger push a note and refs. Raise 409 with the error of the git server."""
    change = call.change
    work = SayRequest(change.project, change.connection, change.ref, change.commit, line, dict(words))
    answer = await call.site.review.say(call.who, work, SayAnswer)
    if not answer.ok:
        raise HTTPException(f"the git server refused the push: {answer.error}", status_code=409)


ROUTES = (remark, approve, recheck)
