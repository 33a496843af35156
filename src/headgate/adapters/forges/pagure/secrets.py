"""The tokens that projects sign their webhooks with: from the settings, or from Pagure if our account may read them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TypeVar

from headgate.adapters.forges.pagure.client import PagureClient
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Rejected
from headgate.ports.reporter import ReporterAway

AGAIN_S = 60.0
"""Shortest interval between two requests for the same token, which somebody may have replaced."""
KNOWN_MAX = 4_096
T = TypeVar("T")
ASKED_MAX = 60
"""Most projects requested in that time, since deliveries may name any project and some processes know no projects."""


class PagureSecrets:
    """Find the secrets of the projects of one Pagure."""

    def __init__(self, client: PagureClient) -> None:
        self._client = client
        self._known: OrderedDict[str, str] = OrderedDict()
        """Project -> its token, from Pagure's answer."""
        self._requests: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Project -> the time before which it is not requested again, and why the request failed."""
        self._lately: deque[float] = deque(maxlen=ASKED_MAX)

    def of(self, project: str) -> tuple[str, ...]:
        """Return the tokens with which deliveries of a project may be signed."""
        account = self._client.account
        token = account.webhook_tokens.get(project) or account.webhook_token or self._known.get(project)
        return (token,) if token else ()

    def may_ask(self, project: str) -> bool:
        """Tell whether the token of a project may be requested from Pagure now."""
        account, now_s = self._client.account, self._client.now_s()
        if account.webhook_tokens.get(project) or account.webhook_token:
            return False
        until_s, _ = self._requests.get(project, (0.0, ""))
        full = len(self._lately) == ASKED_MAX and now_s - self._lately[0] < AGAIN_S
        # The bound is for names that strangers make up; a project that had a token may always be asked about again.
        return now_s >= until_s and not (full and project not in self._known)

    def why(self, project: str) -> str:
        """Return why the token of a project is unknown, for people; empty if it is known, or was not requested."""
        return "" if project in self._known else self._requests.get(project, (0.0, ""))[1]

    async def ask(self, project: str) -> None:
        """Request the token from Pagure. `why` gives the reason of a failure."""
        now_s, why = self._client.now_s(), ""
        self._lately.append(now_s)
        # Before the call, so that deliveries that arrive meanwhile do not ask as well.
        self._keep(self._requests, project, (now_s + AGAIN_S, "its token is being asked for"))
        wait_s = AGAIN_S
        try:
            path = f"{self._client.project(project)}/webhook/token"
            content = (await self._client.get(self._client.key, path)).content
            self._keep(self._known, project, str(content["webhook"]["token"]))
            await self._client.us()  # events that our account causes are no hints
        except (ForgeDenied, NotThere) as error:
            why = (
                f"Pagure does not tell the token of the webhooks of this project: {error}; give the api_token the ACL "
                "to modify projects, and its account the project, or write the token into the settings (webhook_token)"
            )
        except (ReporterAway, Rejected, LookupError, TypeError) as error:
            why = f"Pagure cannot be asked for the token of the webhooks of this project: {error}"[:300]
            wait_s = error.wait_s if isinstance(error, ReporterAway) else AGAIN_S
        self._keep(self._requests, project, (now_s + wait_s, why))

    @staticmethod
    def _keep(where: OrderedDict[str, T], project: str, what: T) -> None:
        where[project] = what
        while len(where) > KNOWN_MAX:
            where.popitem(last=False)
