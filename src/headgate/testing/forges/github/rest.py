"""Take in calls of the REST API, and find what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headgate.testing.forges.github.access import FakeGitHubCaller, FakeGitHubLimits
from headgate.testing.forges.github.acts import FakeGitHubPost, FakeGitHubRefused, Pulls
from headgate.testing.forges.github.mail import Mail
from headgate.testing.forges.github.says import Says
from headgate.testing.forges.github.state import FakeGitHubPull, FakeGitHubRepository, FakeGitHubWorld
from headgate.testing.forges.github.views import FakeGitHubShows

T = TypeVar("T")
PER_PAGE, PER_PAGE_MAX = 30, 100


@dataclass(frozen=True, slots=True)
class FakeGitHubForge:
    """Hold the state that answers are made from."""

    world: FakeGitHubWorld
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
    def repository(self) -> FakeGitHubRepository:
        """Return the one that the path names.  Raise FakeGitHubRefused."""
        found = self.forge.world.repository(f"{self.path['owner']}/{self.path['repo']}")
        if found is None or not self.caller.sees(found):
            raise FakeGitHubRefused(404, "Not Found")
        return found

    @property
    def pull(self) -> FakeGitHubPull:
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
    """Whether it makes content that people are notified of."""


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
