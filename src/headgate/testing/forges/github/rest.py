"""How calls of the REST API come in, and how what is asked for is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headgate.testing.forges.github.acts import Post, Pulls, Refused
from headgate.testing.forges.github.doors import Caller, Limits
from headgate.testing.forges.github.mail import Mail
from headgate.testing.forges.github.says import Says
from headgate.testing.forges.github.shown import Shows
from headgate.testing.forges.github.state import Pull, Repository, World

T = TypeVar("T")
PER_PAGE, PER_PAGE_MAX = 30, 100


@dataclass(frozen=True, slots=True)
class Forge:
    """What answers are made of."""

    world: World
    shows: Shows
    mail: Mail
    limits: Limits
    post: Post
    pulls: Pulls
    says: Says


@dataclass(slots=True)
class Call:
    """One request."""

    forge: Forge
    caller: Caller
    path: dict[str, str]
    query: dict[str, str]
    body: Any
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer."""

    @property
    def repository(self) -> Repository:
        """Return the one that the path names.  Raise Refused."""
        found = self.forge.world.repository(f"{self.path['owner']}/{self.path['repo']}")
        if found is None or not self.caller.sees(found):
            raise Refused(404, "Not Found")
        return found

    @property
    def pull(self) -> Pull:
        """Return the pull request that the path names.  Raise Refused."""
        number = self.path.get("pull_number") or self.path["issue_number"]
        found = self.repository.pulls.get(int(number)) if number.isdecimal() else None
        if found is None:
            raise Refused(404, "Not Found")
        return found

    def needs(self, area: str, level: str = "write") -> None:
        """Refuse who may not."""
        if not self.caller.may(self.repository, area, level):
            if self.caller.installation is not None:
                raise Refused(403, "Resource not accessible by integration")
            raise Refused(404 if self.caller.account is None else 403, "Must have push access to repository.")
        if self.repository.archived and level == "write":
            raise Refused(403, "Repository was archived so is read-only.")

    def page(self, found: Sequence[T]) -> list[T]:
        """Return one page, and link to the others."""
        size = min(int(self.query.get("per_page", PER_PAGE)), PER_PAGE_MAX)
        at = max(1, int(self.query.get("page", 1)))
        last = max(1, -(-len(found) // size))
        links = {"next": at + 1, "last": last} if at < last else {}
        links |= {"prev": at - 1, "first": 1} if at > 1 else {}
        if links:
            said = {k: v for k, v in self.query.items() if k != "page"}
            self.headers["Link"] = ", ".join(f'<{self._link(said, n)}>; rel="{rel}"' for rel, n in links.items())
        return list(found[(at - 1) * size : at * size])

    def _link(self, said: dict[str, str], page: int) -> str:
        return f"{self.url}?" + "&".join(f"{k}={v}" for k, v in {**said, "page": str(page)}.items())


Answer = tuple[int, Any]
"""Status and JSON; None: there is no body."""
Handler = Callable[[Call], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    template: str
    """As GitHub's description has it."""
    handler: Handler
    makes: bool = False
    """People are told of what it makes."""


class Routes:
    """The calls that the stand-in knows."""

    def __init__(self) -> None:
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def on(self, method: str, template: str, *, makes: bool = False) -> Callable[[Handler], Handler]:
        """Return a decorator for what answers a call."""

        def add(handler: Handler) -> Handler:
            self._routes.append(Route(method, template, handler, makes))
            return handler

        return add
