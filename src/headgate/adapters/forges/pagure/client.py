"""Read a connection to Pagure from the settings, call its API, and find the tokens that sign its webhooks."""

from __future__ import annotations

import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx

from headgate.adapters.forges import rest
from headgate.adapters.forges.accounts import TRUE, CallBudget, OnTheWeb, address, host_of, over_ssh
from headgate.base.errors import UserError
from headgate.ports.limits import ForgeLimits
from headgate.ports.reporter import ReporterAway

T = TypeVar("T")

PUBLIC = "pagure.io"
_FORKS, _FORK = "forks/", "fork/"
"""Pagure calls a fork `forks/USER/NAME`, and has its pages below `fork/USER/NAME`."""
PAGE = 20
"""Pull requests on a page; the number is small because each comes with all of its comments."""
_ABOUT = re.compile(r"/((?:fork/[^/?]+/)?(?:[^/?]+/)?[^/?]+?)/(?:pull-requests?|c|options|webhook)(?:[/?]|$)")
"""Matches the beginning of a call's path, with the project that it is about."""
REFUSED_S = 60.0
"""Pause after the forge refuses the token; until somebody provides another one, calls cannot succeed."""
TOKEN_AGAIN_S = 60.0
"""Shortest interval between two requests for the same token, since somebody may have replaced it."""
KNOWN_MAX = 4_096
"""Maximum number of projects whose tokens are cached."""
REQUESTS_MAX = 60
"""Maximum number of requests for tokens in TOKEN_AGAIN_S, since deliveries may name any project, and some processes do
not know the projects."""


@dataclass(frozen=True, slots=True)
class PagureAccount(OnTheWeb):
    """Describe where a Pagure is, and which account Headgate uses there."""

    name: str
    web: str = f"https://{PUBLIC}"
    canonical_hostname: str = PUBLIC
    clone: str = f"https://{PUBLIC}"
    """URL prefix of repositories, followed by the name of the project."""
    api_token: str = field(default="", repr=False)
    app_name: str = "Zuul"
    """Prefix of the names of its flags."""
    webhook_token: str = field(default="", repr=False)
    """Token of the projects that are not listed in `webhook_tokens`; empty: Headgate requests their tokens from
    Pagure.
    """
    webhook_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name of a project -> its webhook token."""
    sshkey: str = ""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return f"{self.web}/api/0"

    def canonical(self, short: str) -> str:
        """Return the canonical name of a project, or of a fork as Pagure's pages name it; see `OnTheWeb`."""
        name = f"{_FORKS}{short.removeprefix(_FORK)}" if short.startswith(_FORK) else short
        return f"{self.canonical_hostname}/{name}"

    def path(self, short: str) -> str:
        """Return the API's path of a project."""
        return f"/{_FORK}{short.removeprefix(_FORKS)}" if short.startswith(_FORKS) else f"/{short}"


def account(name: str, options: Mapping[str, str]) -> PagureAccount:
    """Return the account that a section of the settings describes. Raise UserError."""
    server = options.get("server") or PUBLIC
    web = address("baseurl", options.get("baseurl") or (server if "://" in server else f"https://{server}"))
    if not options.get("api_token"):
        raise UserError(
            "api_token is missing: set it to a token of Headgate's account there that is valid for all projects"
        )
    host = host_of(options.get("server") or web)
    clone = options.get("cloneurl") or (f"ssh://git@{host_of(web)}" if options.get("sshkey") else web)
    if clone.startswith(("http://", "https://")):
        clone = address("cloneurl", clone)
    everywhere, own = _tokens(options.get("webhook_token", ""))
    return PagureAccount(
        name,
        web,
        options.get("canonical_hostname") or host,
        clone.rstrip("/"),
        options["api_token"],
        options.get("app_name") or "Zuul",
        everywhere,
        own,
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )


def _tokens(text: str) -> tuple[str, Mapping[str, str]]:
    """Return the token of all projects (`TOKEN`), and those of single projects (`PROJECT=TOKEN`, possibly repeated)."""
    everywhere, own = "", dict[str, str]()
    for part in re.split(r"[,\s]+", text.strip()):
        project, between, token = part.partition("=")
        if between and not (project and token):
            raise UserError("webhook_token: write a token, or PROJECT=TOKEN for each project, with commas between")
        if between:
            own[project] = token
        else:
            everywhere = part or everywhere
    return everywhere, own


class PagureUnauthorized(rest.ForgeDenied):
    """Report that the token is rejected entirely, or that its ACLs do not include this action."""


class PagureClient(rest.Rest):
    """Call one Pagure."""

    page_size: rest.Query = MappingProxyType({"per_page": PAGE})

    def __init__(
        self,
        account: PagureAccount,
        http: Callable[[], httpx.AsyncClient],
        now_s: Callable[[], float] = time.time,
        limits: ForgeLimits | None = None,
    ) -> None:
        super().__init__(account.host, account.api, http, now_s, limits)
        self.account, self.now_s = account, now_s
        self.key = rest.ForgeKey(f"the token of {account.name}", account.api_token)
        self.login = ""
        """Login of the account; empty while unknown."""

    def headers(self, key: rest.ForgeKey) -> Mapping[str, str]:
        """Return the headers that authenticate a call; see `Rest`."""
        form = "application/x-www-form-urlencoded"
        return {"Accept": "application/json", "Content-Type": form, "Authorization": f"token {key.token}"}

    def encoded(self, content: Any) -> bytes:
        """Return the body of a request as a form, which Pagure requires; see `Rest`."""
        return urlencode(content).encode()

    def taken(self, answer: rest.Heard, budget: CallBudget) -> Any:
        """Return the content of a response, or raise what its status means; see `Rest`."""
        body = answer.body if answer.status < 400 else rest.in_one_form(answer.body)
        if answer.status == 500:
            raise rest.ForgeServerError(f"{self.account.host} has an internal error (500); see its log", rest.AGAIN_S)
        try:
            return super().taken(rest.Heard(answer.status, answer.headers, body), budget)
        except rest.ForgeDenied as error:
            if answer.status != 401:
                raise
            raise PagureUnauthorized(str(error)) from error

    def about(self, url: str) -> str:
        """Return the project that a call concerns; see `Rest`."""
        found = _ABOUT.match(url.removeprefix(self.account.api))
        return found[1] if found is not None else ""

    def project(self, short: str) -> str:
        """Return the API's path of a project."""
        return self.account.path(short)

    async def requests(self, path: str, query: rest.Query) -> AsyncIterator[Any]:
        """Yield a list of pull requests, page by page; one that is too long to read is left out. Raise the errors of
        `get`."""
        for page in range(1, rest.PAGES_MAX + 1):
            try:
                content = (
                    await self.get(self.key, path, {**query, "per_page": PAGE, "page": page}, urgent=False)
                ).content
            except rest.ResponseTooLarge:
                pages = await self._one_by_one(path, query, page)
                yield pages[0]
                if page >= pages[1]:
                    return
                continue
            yield content["requests"]
            if page >= int((content.get("pagination") or {}).get("pages") or 1):
                return

    async def _one_by_one(self, path: str, query: rest.Query, page: int) -> tuple[list[Any], int]:
        """Return the pull requests of a page that is too long for one request, and the number of pages."""
        found, pages = list[Any](), page
        for one in range((page - 1) * PAGE + 1, page * PAGE + 1):
            try:
                content = (await self.get(self.key, path, {**query, "per_page": 1, "page": one}, urgent=False)).content
            except rest.ResponseTooLarge:
                # An entry that is too long even alone does not show how many pages follow; assume one more, so that
                # reading continues.
                pages = max(pages, one // PAGE + 1)
                continue
            found += content["requests"]
            all_ = int((content.get("pagination") or {}).get("pages") or 1)
            pages = -(-all_ // PAGE)
            if one >= all_:
                break
        return found, pages

    # --- credentials

    async def of(self, _project: str) -> rest.ForgeKey:
        """Return the key for calls; see `reporter.ForgeIdentity`. One account serves all projects."""
        return self.key

    def forget(self) -> None:
        """Forget our account, so that the next caller asks for it."""
        self.login = ""

    async def us(self) -> tuple[str, ...]:
        """Return the accounts that Headgate writes as; see `reporter.ForgeIdentity`."""
        if not self.login:
            self.login = str((await self.write("POST", self.key, "/-/whoami", {})).content["username"])
        return (self.login,)

    async def let_in(self) -> None:
        """Check whether Pagure refuses the token for every call. Raise ReporterAway if so, so that all calls wait for a
        new one."""
        try:
            await self.write("POST", self.key, "/-/whoami", {})
        except rest.ForgeDenied as error:
            raise ReporterAway(f"{self.account.host} refuses the api_token: create another one", REFUSED_S) from error

    async def git(self, _project: str) -> Mapping[str, str]:
        """Return git's settings for access to the server; public repositories are read without a token."""
        account = self.account
        if account.sshkey:
            return over_ssh(account.sshkey)
        return {} if account.verify_ssl else {f"http.{account.clone}/.sslVerify": "false"}


class PagureSecrets:
    """Find the secrets of the projects of one Pagure."""

    def __init__(self, client: PagureClient) -> None:
        self._client = client
        self._known: OrderedDict[str, str] = OrderedDict()
        """Project -> its token, from Pagure's response."""
        self._requests: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Project -> the time before which it is not requested again, and why the request failed."""
        self._lately: deque[float] = deque(maxlen=REQUESTS_MAX)

    def of(self, project: str) -> tuple[str, ...]:
        """Return the tokens with which deliveries of a project may be signed."""
        account = self._client.account
        token = account.webhook_tokens.get(project) or account.webhook_token or self._known.get(project)
        return (token,) if token else ()

    def may_ask(self, project: str) -> bool:
        """Return whether the token of a project may be requested from Pagure now."""
        account, now_s = self._client.account, self._client.now_s()
        if account.webhook_tokens.get(project) or account.webhook_token:
            return False
        until_s, _ = self._requests.get(project, (0.0, ""))
        full = len(self._lately) == REQUESTS_MAX and now_s - self._lately[0] < TOKEN_AGAIN_S
        # The bound is for names that strangers make up; for a project that had a token, it does not apply.
        return now_s >= until_s and not (full and project not in self._known)

    def why(self, project: str) -> str:
        """Return why the token of a project is unknown; empty if it is known, or was not requested."""
        return "" if project in self._known else self._requests.get(project, (0.0, ""))[1]

    async def ask(self, project: str) -> None:
        """Request the token from Pagure. `why` gives the reason of a failure."""
        now_s, why = self._client.now_s(), ""
        self._lately.append(now_s)
        # Record the request before the call, so that deliveries that arrive in the meantime do not request it too.
        self._keep(self._requests, project, (now_s + TOKEN_AGAIN_S, "Headgate is requesting its token"))
        wait_s = TOKEN_AGAIN_S
        try:
            path = f"{self._client.project(project)}/webhook/token"
            content = (await self._client.get(self._client.key, path)).content
            self._keep(self._known, project, str(content["webhook"]["token"]))
            await self._client.us()  # so that `hint` can ignore events that our account causes
        except (rest.ForgeDenied, rest.NotThere) as error:
            why = (
                f"Pagure does not reveal the webhook token of this project: {error}; give the api_token the ACL to "
                "modify projects, and give its account access to the project, or set webhook_token in the settings"
            )
        except (ReporterAway, rest.Rejected, LookupError, TypeError) as error:
            why = f"Headgate cannot request the webhook token of this project: {error}"[:300]
            wait_s = error.wait_s if isinstance(error, ReporterAway) else TOKEN_AGAIN_S
        self._keep(self._requests, project, (now_s + wait_s, why))

    @staticmethod
    def _keep(where: OrderedDict[str, T], project: str, what: T) -> None:
        where[project] = what
        while len(where) > KNOWN_MAX:
            where.popitem(last=False)
