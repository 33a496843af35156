"""Check calls of the stand-in: who calls, their permissions, their remaining rate limit, and the object of the call."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jwt

from headgate.testing.forges.github import model
from headgate.testing.forges.github.acts import FakeGitHubPost, FakeGitHubRefused, Pulls
from headgate.testing.forges.github.mail import Mail
from headgate.testing.forges.github.rules import Asker
from headgate.testing.forges.github.says import Says
from headgate.testing.forges.github.views import FakeGitHubShows

JWT_LIFE_MAX_S = 600
SKEW_S = 60
CONTENT_MAX_A_MINUTE = 80
"""Limit on requests that make content and notify people."""
BUDGETS = {"core": 5000, "graphql": 5000, "search": 30}
ANONYMOUS_BUDGET = 60
PER_PAGE, PER_PAGE_MAX = 30, 100
DOCS = "https://docs.github.com/rest"
PRIMARY = "API rate limit exceeded for installation ID {}."
SECONDARY = (
    "You have exceeded a secondary rate limit and have been temporarily blocked from content creation. "
    "Please retry your request again later."
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FakeGitHubCaller:
    """Hold who makes a request, and what they may do."""

    account: model.FakeGitHubAccount | None
    """Account of the caller; None: anonymous, or an app as itself."""
    app: model.App | None = None
    installation: model.FakeGitHubInstallation | None = None
    key: str = "anonymous"
    """Key of the rate limit that the caller uses."""

    @property
    def asker(self) -> Asker:
        """Return the account that merges or pushes. Raise FakeGitHubRefused."""
        if self.account is None:
            raise FakeGitHubRefused(401, "Requires authentication")
        return Asker(self.account, self.app.slug if self.app else "")

    def sees(self, repository: model.FakeGitHubRepository) -> bool:
        """Return whether the caller can see the repository."""
        if not repository.private:
            return True
        if self.installation is not None:
            one = self.installation
            mine = one.projects is None or repository.full_name in one.projects
            return one.account is repository.owner and mine
        return self.account is not None and bool(repository.role(self.account.login))

    def may(self, repository: model.FakeGitHubRepository, area: str, level: str) -> bool:
        """Return whether the caller has access to an area of the repository, such as `checks`."""
        if self.installation is not None:
            one = self.installation
            mine = one.account is repository.owner and (one.projects is None or repository.full_name in one.projects)
            # Write access includes read access.
            granted = one.app.permissions.get(area, "")
            return mine and (granted == "write" or (granted == "read" and level == "read"))
        if self.account is None:
            return level == "read" and area == "metadata"
        role = repository.role(self.account.login)
        # Everybody who sees a repository may comment in it.
        if area == "issues" or level == "read":
            return bool(role)
        return role in ("write", "maintain", "admin")


def bearer(header: str) -> str:
    """Return the token of an Authorization header; of Basic, the password."""
    kind, _, text = header.partition(" ")
    if kind.lower() in ("bearer", "token"):
        return text.strip()
    if kind.lower() == "basic":
        name, _, password = base64.b64decode(text).decode().partition(":")
        # Git sends a token as the password, or as the user name with this password.
        return password if password and password != "x-oauth-basic" else name
    return ""


def caller(world: model.FakeGitHubWorld, header: str) -> FakeGitHubCaller:
    """Return the caller. Raise FakeGitHubRefused."""
    text = bearer(header)
    if not text:
        return FakeGitHubCaller(None)
    # A JSON Web Token has three parts; no other token of GitHub has dots.
    if text.count(".") == 2:
        return _app(world, text)
    token = world.tokens.get(text)
    if token is None or token.revoked or token.expires_s <= world.clock.now_s():
        raise FakeGitHubRefused(401, "Bad credentials")
    if token.installation is not None and token.installation.suspended:
        raise FakeGitHubRefused(403, "This installation has been suspended")
    key = f"installation {token.installation.id}" if token.installation else f"user {token.account.id}"
    app = token.installation.app if token.installation else None
    return FakeGitHubCaller(token.account, app, token.installation, key)


def _app(world: model.FakeGitHubWorld, text: str) -> FakeGitHubCaller:
    """Return the app that signed a JSON Web Token."""
    now_s = world.clock.now_s()
    try:
        # The unverified claims only say whose key to verify with.
        claims = jwt.decode(text, options={"verify_signature": False})
        app = world.apps[int(claims["iss"])]
        # Times are checked below against the stand-in's clock,
        # which tests advance; the library knows only the real one.
        jwt.decode(text, app.public_key, algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False})
    except (jwt.InvalidTokenError, KeyError, ValueError) as error:
        raise FakeGitHubRefused(401, "A JSON web token could not be decoded") from error
    issued_s, ends_s = claims.get("iat"), claims.get("exp")
    if not isinstance(issued_s, int) or issued_s > now_s + SKEW_S:
        raise FakeGitHubRefused(
            401, "'Issued at' claim ('iat') must be an Integer representing the time that it was issued"
        )
    if not isinstance(ends_s, int) or not now_s - SKEW_S < ends_s <= now_s + JWT_LIFE_MAX_S + SKEW_S:
        raise FakeGitHubRefused(401, "'Expiration time' claim ('exp') is too far in the future or has passed")
    return FakeGitHubCaller(None, app, key=f"app {app.id}")


def new_token(world: model.FakeGitHubWorld, installation: model.FakeGitHubInstallation) -> model.FakeGitHubToken:
    """Make a token for an installation."""
    text = "ghs_" + hashlib.sha256(f"{installation.id}/{next(world.ids)}".encode()).hexdigest()[:36]
    expires_s = world.clock.now_s() + world.token_life_s
    world.tokens[text] = model.FakeGitHubToken(text, installation.app.bot, installation, expires_s)
    return world.tokens[text]


@dataclass(slots=True)
class Budget:
    limit: int
    reset_s: float
    used: int = 0


@dataclass(slots=True)
class FakeGitHubLimits:
    """Limit every caller."""

    world: model.FakeGitHubWorld
    limits: dict[str, int] = field(default_factory=lambda: dict(BUDGETS))
    content_max_a_minute: int = CONTENT_MAX_A_MINUTE
    budgets: dict[tuple[str, str], Budget] = field(default_factory=dict)
    punished: dict[str, float] = field(default_factory=dict)
    """Key of a caller that is blocked -> when the block ends."""
    after_s: int | None = 60
    """Seconds in the Retry-After header of a refusal; None: the header is not sent."""
    made: dict[str, deque[float]] = field(default_factory=dict)

    def of(self, key: str, resource: str) -> Budget:
        """Return a budget, new when its hour is over."""
        now_s = self.world.clock.now_s()
        found = self.budgets.get((key, resource))
        if found is None or found.reset_s <= now_s:
            limit = ANONYMOUS_BUDGET if key == "anonymous" else self.limits[resource]
            life_s = 60 if resource == "search" else 3600
            found = self.budgets[key, resource] = Budget(limit, now_s + life_s)
        return found

    def exhaust(self, key: str, resource: str = "core") -> None:
        """Use up a budget."""
        budget = self.of(key, resource)
        budget.used = budget.limit

    def punish(self, key: str, seconds: int, retry_after: bool = True) -> None:
        """Apply a secondary limit to a caller."""
        self.punished[key] = self.world.clock.now_s() + seconds
        self.after_s = seconds if retry_after else None

    def headers(self, key: str, resource: str) -> dict[str, str]:
        """Return the headers of every answer that describe the rate limit."""
        budget = self.of(key, resource)
        return {
            "X-RateLimit-Limit": str(budget.limit),
            "X-RateLimit-Remaining": str(max(0, budget.limit - budget.used)),
            "X-RateLimit-Used": str(budget.used),
            "X-RateLimit-Reset": str(int(budget.reset_s)),
            "X-RateLimit-Resource": resource,
        }

    def secondary(self, key: str) -> bool:
        """Return whether a secondary limit blocks the caller."""
        return self.punished.get(key, 0.0) > self.world.clock.now_s()

    def spent(self, key: str, resource: str) -> bool:
        """Return whether a budget is exhausted."""
        budget = self.of(key, resource)
        return budget.used >= budget.limit

    def makes(self, key: str) -> None:
        """Count requests that notify people; too many of them are punished."""
        now_s = self.world.clock.now_s()
        made = self.made.setdefault(key, deque())
        made.append(now_s)
        while made[0] < now_s - 60:
            made.popleft()
        if len(made) > self.content_max_a_minute:
            self.punish(key, 60)


@dataclass(frozen=True, slots=True)
class FakeGitHubForge:
    """Hold the state from which answers are computed."""

    world: model.FakeGitHubWorld
    shows: FakeGitHubShows
    mail: Mail
    limits: FakeGitHubLimits
    post: FakeGitHubPost
    pulls: Pulls
    says: Says


@dataclass(slots=True)
class FakeGitHubCall:
    """Represent one request."""

    forge: FakeGitHubForge
    caller: FakeGitHubCaller
    path: dict[str, str]
    query: dict[str, str]
    body: Any
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the answer."""

    @property
    def repository(self) -> model.FakeGitHubRepository:
        """Return the repository that the path names. Raise FakeGitHubRefused."""
        found = self.forge.world.repository(f"{self.path['owner']}/{self.path['repo']}")
        # As at GitHub, a refusal must not reveal that a private repository exists.
        if found is None or not self.caller.sees(found):
            raise FakeGitHubRefused(404, "Not Found")
        return found

    @property
    def pull(self) -> model.FakeGitHubPull:
        """Return the pull request that the path names.  Raise FakeGitHubRefused."""
        number = self.path.get("pull_number") or self.path["issue_number"]
        found = self.repository.pulls.get(int(number)) if number.isdecimal() else None
        if found is None:
            raise FakeGitHubRefused(404, "Not Found")
        return found

    def needs(self, area: str, level: str = "write") -> None:
        """Refuse callers without the permission."""
        if not self.caller.may(self.repository, area, level):
            if self.caller.installation is not None:
                raise FakeGitHubRefused(403, "Resource not accessible by integration")
            raise FakeGitHubRefused(404 if self.caller.account is None else 403, "Must have push access to repository.")
        if self.repository.archived and level == "write":
            raise FakeGitHubRefused(403, "Repository was archived so is read-only.")

    def page(self, found: Sequence[T]) -> list[T]:
        """Return one page, and link to the others."""
        size = min(int(self.query.get("per_page", PER_PAGE)), PER_PAGE_MAX)
        at = max(1, int(self.query.get("page", 1)))
        last = max(1, -(-len(found) // size))
        links = {"next": at + 1, "last": last} if at < last else {}
        links |= {"prev": at - 1, "first": 1} if at > 1 else {}
        if links:
            query = {k: v for k, v in self.query.items() if k != "page"}
            self.headers["Link"] = ", ".join(f'<{self._link(query, n)}>; rel="{rel}"' for rel, n in links.items())
        return list(found[(at - 1) * size : at * size])

    def _link(self, query: dict[str, str], page: int) -> str:
        return f"{self.url}?" + "&".join(f"{k}={v}" for k, v in {**query, "page": str(page)}.items())


Answer = tuple[int, Any]
"""Status and JSON; None: the answer has no body."""
Handler = Callable[[FakeGitHubCall], Answer]


@dataclass(frozen=True, slots=True)
class FakeGitHubRoute:
    method: str
    template: str
    """Path template, as in GitHub's description."""
    handler: Handler
    makes: bool = False
    """Whether the call creates content that people are notified of."""


class Routes:
    """Declare the calls that the stand-in knows."""

    def __init__(self) -> None:
        self._routes: list[FakeGitHubRoute] = []

    def __iter__(self) -> Iterator[FakeGitHubRoute]:
        return iter(self._routes)

    def on(self, method: str, template: str, *, makes: bool = False) -> Callable[[Handler], Handler]:
        """Return a decorator for functions that answer a call."""

        def add(handler: Handler) -> Handler:
            self._routes.append(FakeGitHubRoute(method, template, handler, makes))
            return handler

        return add
