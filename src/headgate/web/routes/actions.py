"""Record and show the actions of people, and the writes that were refused to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.map.records import DONE, HandAction
from headgate.ports.history import LIMIT_MAX, time_text
from headgate.rest import HTTPException, HttpRequest, JSONBody, get, post
from headgate.store.types import Op, StoreError
from headgate.web.access import Bearer, is_checked
from headgate.web.description import NUMBER, QueryParameter
from headgate.web.peers.requests import READING, Message
from headgate.web.routes.history import number
from headgate.web.site import Site

log = logging.getLogger("headgate.hand")

TEXT_MAX_CHARS = 1_024
WAITING_MAX = 10_000
"""Limit on the actions that are searched among those that are not recorded in the history yet."""
_WORDS = {"dequeue": "dequeued", "cancel": "cancelled", "modify-nodeset-request": "cancelled"}
"""Verb -> the word for it in messages to the people whose change it affects."""
SEEN_MAX_S = 2.0
"""Longest wait until the mirror shows what was written."""
RECORDED = "headgate_recorded"
"""Key in the scope of a request whose outcome has already been recorded."""
REFUSALS_PERIOD_MS = 3_600_000
REFUSALS_OF_ONE_MAX = 5
"""Limit on the recorded refusals of one person in a period, at most one for each tenant and verb; the log has all."""
REFUSALS_MAX = 100
"""Limit on the refusals of all people that each process records in a period."""
PART = (
    QueryParameter("limit", "Number of results, 50 by default.", NUMBER),
    QueryParameter("skip", "Number of results to skip.", NUMBER),
)
Work = Callable[[Sequence[Op]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Hand:
    """Perform one action of a person who is authorized to take it."""

    site: Site
    request: HttpRequest
    verb: str
    tenant: str = ""
    """Empty if the action concerns the whole system."""
    subject: str = ""
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)  # JSON

    async def does(self, work: Work) -> None:
        """Perform the action and record its outcome. `work` receives operations and writes them in the same commit as
        the request for the effect, so that every action is recorded, whatever fails afterwards. Raise PermissionError
        if the route has not called `Site.allow`, so that a forgotten check cannot have an effect."""
        if not is_checked(self.request):
            raise PermissionError(f"the route of {self.verb} has not checked the permission of its caller")
        action = self._action()
        # Set before the work: whatever it raises is recorded here, and must not be recorded again as a refusal.
        self.request.scope[RECORDED] = True
        log.info("%s by %s from %s: %s%s", action.verb, action.who, action.origin, action.subject, _because(action))
        try:
            await self._tried(action, work)
        finally:
            # Only now, so that the next status shows the effect: a viewer that reads before the mirror has it would
            # use up this refresh.
            self.site.shots.stale()

    async def _tried(self, action: HandAction, work: Work) -> None:
        stream = self.site.context.map.history.by_hand
        try:
            # Recorded without an outcome first: if this process ends
            # meanwhile, the list still shows who requested what.
            await work(stream.append(action))
        except HTTPException as error:
            await self._ended(replace(action, outcome=plain(str(error.detail)) or f"status {error.status_code}"))
            raise
        except Exception as error:
            await self._ended(replace(action, outcome=f"failed: {type(error).__name__}"))
            raise
        await self._ended(replace(action, outcome=DONE))

    @property
    def explanation(self) -> str:
        """Return the sentence that reports to the change's owners who did this and why."""
        bearer = self.site.access.bearer(self.request)
        who = plain(bearer.name) if bearer is not None else "nobody"
        return (
            f"it was {_WORDS.get(self.verb, 'done by hand')} by {who}{f': {plain(self.reason)}' if self.reason else ''}"
        )

    async def refused(self, why: str) -> None:
        """Record that the action was refused, as this person lacks the permission."""
        await self._ended(replace(self._action(), outcome=f"refused: {plain(why)}"))

    async def _ended(self, action: HandAction) -> None:
        """Record the outcome, and return once the mirror shows it and everything before, so that the next response
        includes it."""
        log.info("%s by %s: %s", action.verb, action.who, action.outcome)
        context = self.site.context
        stream = context.map.history.by_hand
        with context.mirror.part(stream.queue) as part:
            part.changed()
            try:
                written = await context.store.commit([], stream.append(action))
            # The action itself is done or refused by now: failing to record
            # it must not turn the response into an error.
            except StoreError as error:
                key = (action.verb, action.who, action.outcome)
                log.error("the outcome of %s by %s (%s) could not be recorded: %s", *key, error)
                return
            paths = {entry.path for entry in written if entry is not None}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEEN_MAX_S):
                    # The recorder may delete the entry before it is ever seen,
                    # so wait for a change of its path, not for its presence.
                    while (changed := part.changed()) is not None and not paths & changed:
                        await part.moved(part.moves)

    def _action(self) -> HandAction:
        bearer = self.site.access.bearer(self.request)
        assert bearer is not None, "Site.allow has run"
        client = self.request.client
        # A claim of the client, not a fact: it is recorded together with the real address, never instead of it.
        through = plain(self.request.headers.get("x-forwarded-for", ""))
        return HandAction(
            id=fresh(),
            verb=self.verb,
            who=plain(bearer.name),
            authenticator=bearer.authenticator,
            origin=f"{client.host if client else 'nowhere'}{f', for {through}' if through else ''}",
            at_ms=self.site.context.now_ms(),
            tenant=self.tenant,
            subject=plain(self.subject),
            reason=plain(self.reason),
            details={name: plain(value) if isinstance(value, str) else value for name, value in self.details.items()},
        )


def plain(text: str) -> str:
    """Make a string safe for logs, databases and terminals: one line of printable characters, cut if it is too long."""
    cut = text if len(text) <= TEXT_MAX_CHARS else f"{text[: TEXT_MAX_CHARS - 1]}…"
    return "".join(c if c.isprintable() else " " for c in cut)


def _because(action: HandAction) -> str:
    return f" because {action.reason}" if action.reason else ""


class ActionShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an action of a person. Headgate only."""

    id: str
    verb: str
    who: str
    authenticator: str
    """The section [auth NAME] that authenticated the person; empty for the bearer of the operator's token."""
    origin: str
    """Network address of the client; only shown to callers with a token."""
    time: str
    tenant: str
    subject: str
    reason: str
    details: dict[str, Any]  # JSON
    outcome: str
    """`done`, or why the action failed; empty if the outcome is not known yet, or will never be known."""


def _shape(action: HandAction, *, known: bool) -> ActionShape:
    return ActionShape(
        id=action.id,
        verb=action.verb,
        who=action.who,
        authenticator=action.authenticator,
        origin=action.origin if known else "",
        time=time_text(action.at_ms) or "",
        tenant=action.tenant,
        subject=action.subject,
        reason=action.reason,
        details=action.details,
        outcome=action.outcome,
    )


async def _found(site: Site, request: HttpRequest, tenant: str) -> list[ActionShape]:
    """List actions, latest first, including those that are not recorded in the history yet."""
    limit, skip = number(request, "limit", 50), number(request, "skip", 0)
    if limit > LIMIT_MAX:
        raise HTTPException(f"limit must be at most {LIMIT_MAX}", status_code=400)
    waiting = site.context.map.history.by_hand.waiting(site.context.mirror, limit=WAITING_MAX)
    fresh_ones = {w.event.id: w.event for w in waiting if w.event.tenant == tenant}
    # Read more than are shown: some may be among the fresh ones as well, and must not appear twice.
    past = await site.history.actions(tenant, limit=limit + len(fresh_ones), skip=max(0, skip - len(fresh_ones)))
    found = {one.id: one for one in past} | fresh_ones
    known = site.access.reader(request) is not None
    ordered = sorted(found.values(), key=lambda one: (-one.at_ms, one.id))
    return [_shape(one, known=known) for one in ordered[min(skip, len(fresh_ones)) :][:limit]]


@get("/api/tenant/{tenant:str}/actions", opt={"query": PART})
async def actions(site: Site, request: HttpRequest, tenant: str) -> list[ActionShape]:
    """Return the actions of people in the tenant, latest first. Headgate only."""
    site.tenant(tenant)
    return await _found(site, request, tenant)


@get("/api/actions", opt={"query": PART})
async def all_actions(site: Site, request: HttpRequest) -> list[ActionShape]:
    """Return the actions of people that concern the entire system, latest first. Only administrators of the entire
    system may read them. Headgate only."""
    site.allow_all(request)
    return await _found(site, request, "")


class ApprovalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request that an approval be recorded."""

    project: str
    change: str
    """`<branch>/<topic>`"""
    commit: str = ""
    reason: str = ""


@post("/api/tenant/{tenant:str}/approval", status_code=200, opt={"permission": "enqueue"})
async def approval(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ApprovalBody]) -> bool:
    """Record in the actions that a person has approved a change by a push. This request itself approves nothing.
    Headgate only.
    """
    site.allow(request, tenant, "enqueue", project=data.project)
    site.project(tenant, data.project)

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], besides)

    subject, details = f"{data.change} of {data.project}", {"commit": data.commit}
    await Hand(site, request, "approve", tenant, subject, data.reason, details).does(work)
    return True


class RefusedWrites:
    """Record the writes that were refused to identified people. Those of anonymous callers are not recorded: strangers
    could fill a disk."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._period, self._seen, self._of = 0, set[tuple[str, ...]](), Counter[tuple[str, ...]]()

    async def note(self, error: Exception, scope: Any) -> None:  # ASGI
        """Record a refused write, unless the limits on recorded refusals are reached."""
        if not isinstance(error, HTTPException) or error.status_code != 403 or scope["method"] in READING:
            return
        tenant = str(scope.get("path_params", {}).get("tenant", ""))
        bearer = self._bearer(scope)
        # The tenant's name comes from the address: with invented names, one person could fill the list.
        if scope.get(RECORDED) or bearer is None or (tenant and tenant not in self._site.tenants):
            return
        verb = _verb(scope)
        if self._room((bearer.authenticator, bearer.name), tenant, verb):
            subject = str(scope["path"]).removeprefix(f"/api/tenant/{tenant}/").removeprefix("/api/")
            await Hand(self._site, HttpRequest(scope), verb, tenant, subject).refused(str(error.detail))

    def _bearer(self, scope: Any) -> Bearer | None:
        """Return the caller; None: the caller is anonymous, or a foreign page that uses somebody's login."""
        with contextlib.suppress(HTTPException):
            return self._site.access.bearer(HttpRequest(scope))
        return None

    def _room(self, who: tuple[str, str], tenant: str, verb: str) -> bool:
        """Return whether the limits permit another recorded refusal, and count it."""
        period = self._site.context.now_ms() // REFUSALS_PERIOD_MS
        if period != self._period:
            self._period, self._seen, self._of = period, set(), Counter()
        key = (*who, tenant, verb)
        if key in self._seen or self._of[who] >= REFUSALS_OF_ONE_MAX or len(self._seen) >= REFUSALS_MAX:
            return False
        self._seen.add(key)
        self._of[who] += 1
        return True


def _verb(scope: Message) -> str:
    """Return the last word of the address; if that is the name of an object, the permission that the route needs."""
    last = str(scope["template"]).rpartition("/")[2]
    if "{" in last and last != "{rest:path}":
        return str(scope["handler"].opt.get("permission", "write"))
    return str(scope["path"]).rpartition("/")[2]


ROUTES = (actions, all_actions, approval)
