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
"""Limit on the actions on their way into the history that are searched."""
_WORDS = {"dequeue": "taken out", "cancel": "stopped", "modify-nodeset-request": "stopped"}
"""Verb -> the word for it in messages to the people whose change it affects."""
SEEN_MAX_S = 2.0
"""Longest wait until the mirror shows what was written; longer while the store is unreachable."""
RECORDED = "headgate_recorded"
"""Key in the scope of a request whose outcome is recorded already."""
REFUSALS_PERIOD_MS = 3_600_000
REFUSALS_OF_ONE_MAX = 5
"""Refusals of one person that are recorded in a period, each for another tenant or verb; the log has the rest."""
REFUSALS_MAX = 100
"""Refusals of all people that each process records in a period."""
PART = (QueryParameter("limit", "At most so many; 50.", NUMBER), QueryParameter("skip", schema=NUMBER))
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
        """Perform the action and record its outcome. `work` writes the operations that it receives in the commit
        that requests the effect, so that every action is recorded, whatever fails next. Raise PermissionError if the
        route has not asked `Site.allow`: a forgotten check does nothing."""
        if not is_checked(self.request):
            raise PermissionError(f"the route of {self.verb} has not checked whether its caller may do this")
        action = self._action()
        # Set before the work: whatever it raises, its outcome is recorded here and not again as a refusal.
        self.request.scope[RECORDED] = True
        log.info("%s by %s from %s: %s%s", action.verb, action.who, action.origin, action.subject, _because(action))
        try:
            await self._tried(action, work)
        finally:  # only now: a viewer that looks before the mirror has it would use up this refresh
            self.site.shots.stale()  # the next status shows the effect

    async def _tried(self, action: HandAction, work: Work) -> None:
        stream = self.site.context.map.history.by_hand
        try:
            # Recorded first without an outcome: if this process ends
            # meanwhile, the list still tells who asked for what.
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
        """Return a sentence that tells the owners of the change who did this and why."""
        bearer = self.site.access.bearer(self.request)
        who = plain(bearer.name) if bearer is not None else "nobody"
        return (
            f"it was {_WORDS.get(self.verb, 'done by hand')} by {who}{f': {plain(self.reason)}' if self.reason else ''}"
        )

    async def refused(self, why: str) -> None:
        """Keep that it was not done, since this person may not do it."""
        await self._ended(replace(self._action(), outcome=f"refused: {plain(why)}"))

    async def _ended(self, action: HandAction) -> None:
        """Keep how it ended, and return once the mirror has that and all before it: the next answer tells of it."""
        log.info("%s by %s: %s", action.verb, action.who, action.outcome)
        context = self.site.context
        stream = context.map.history.by_hand
        with context.mirror.part(stream.queue) as part:
            part.changed()
            try:
                written = await context.store.commit([], stream.append(action))
            # The action itself is done or refused by now; its outcome must
            # not depend on whether the record can be written.
            except StoreError as error:
                key = (action.verb, action.who, action.outcome)
                log.error("how %s by %s ended (%s) could not be kept: %s", *key, error)
                return
            paths = {entry.path for entry in written if entry is not None}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEEN_MAX_S):
                    # The recorder may take the entry away before it is ever seen,
                    # so its change is awaited and not its presence.
                    while (changed := part.changed()) is not None and not paths & changed:
                        await part.moved(part.moves)

    def _action(self) -> HandAction:
        bearer = self.site.access.bearer(self.request)
        assert bearer is not None, "Site.allow has run"
        client = self.request.client
        # A claim of the sender, not a fact: it is recorded beside the real address, never in its place.
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
    """Reduce text to one line that is safe in a log, a database and a terminal; cut it if it is too long."""
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
    """Only shown to callers with a token."""
    time: str
    tenant: str
    subject: str
    reason: str
    details: dict[str, Any]  # JSON
    outcome: str
    """`done`, or why the action failed; empty if the outcome is not known yet, or never will be."""


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
    """List actions, latest first, with those that are on their way into the history."""
    limit, skip = number(request, "limit", 50), number(request, "skip", 0)
    if limit > LIMIT_MAX:
        raise HTTPException(f"limit is at most {LIMIT_MAX}", status_code=400)
    waiting = site.context.map.history.by_hand.waiting(site.context.mirror, limit=WAITING_MAX)
    fresh_ones = {w.event.id: w.event for w in waiting if w.event.tenant == tenant}
    # More are read than shown: some of them may be among the fresh ones, too, and count once.
    past = await site.history.actions(tenant, limit=limit + len(fresh_ones), skip=max(0, skip - len(fresh_ones)))
    found = {one.id: one for one in past} | fresh_ones
    known = site.access.reader(request) is not None
    ordered = sorted(found.values(), key=lambda one: (-one.at_ms, one.id))
    return [_shape(one, known=known) for one in ordered[min(skip, len(fresh_ones)) :][:limit]]


@get("/api/tenant/{tenant:str}/actions", opt={"query": PART})
async def actions(site: Site, request: HttpRequest, tenant: str) -> list[ActionShape]:
    """Return the actions of people in the tenant, latest first; limit and skip work as for builds. Headgate only."""
    site.tenant(tenant)
    return await _found(site, request, tenant)


@get("/api/actions", opt={"query": PART})
async def all_actions(site: Site, request: HttpRequest) -> list[ActionShape]:
    """Return the actions of people on the whole system, for its administrators. Headgate only."""
    site.allow_all(request)
    return await _found(site, request, "")


class ApprovalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a note about an approval."""

    project: str
    change: str
    """`<branch>/<topic>`"""
    commit: str = ""
    reason: str = ""


@post("/api/tenant/{tenant:str}/approval", status_code=200, opt={"permission": "enqueue"})
async def approval(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ApprovalBody]) -> bool:
    """Record that a person approved a change by a push: who, what and why. This request itself approves nothing.
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
    """Record refused writes of identified people. A caller without a token is not identified, and nothing is
    recorded: strangers could fill a disk."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._period, self._seen, self._of = 0, set[tuple[str, ...]](), Counter[tuple[str, ...]]()

    async def note(self, error: Exception, scope: Any) -> None:  # ASGI
        """Keep that a request was refused to somebody, if it would have changed something and few were kept lately."""
        if not isinstance(error, HTTPException) or error.status_code != 403 or scope["method"] in READING:
            return
        tenant = str(scope.get("path_params", {}).get("tenant", ""))
        bearer = self._bearer(scope)
        # Names of tenants come from the address: unknown ones would let one person fill the list with inventions.
        if scope.get(RECORDED) or bearer is None or (tenant and tenant not in self._site.tenants):
            return
        verb = _verb(scope)
        if self._room((bearer.authenticator, bearer.name), tenant, verb):
            subject = str(scope["path"]).removeprefix(f"/api/tenant/{tenant}/").removeprefix("/api/")
            await Hand(self._site, HttpRequest(scope), verb, tenant, subject).refused(str(error.detail))

    def _bearer(self, scope: Any) -> Bearer | None:
        """Return the caller; None for strangers, and for foreign pages that use somebody's login."""
        with contextlib.suppress(HTTPException):
            return self._site.access.bearer(HttpRequest(scope))
        return None

    def _room(self, who: tuple[str, str], tenant: str, verb: str) -> bool:
        """Return whether one more is kept, and count it."""
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
    """Return the last word of the address, or the permission that is needed where that is a name of something."""
    last = str(scope["template"]).rpartition("/")[2]
    if "{" in last and last != "{rest:path}":
        return str(scope["handler"].opt.get("permission", "write"))
    return str(scope["path"]).rpartition("/")[2]


ROUTES = (actions, all_actions, approval)
