"""Connect to a GitHub that the settings describe; see `ports.forge.Forge`."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import msgspec

from headgate.adapters.forges.driver import BranchReader, RestDriver
from headgate.adapters.forges.github.client import GitHubAccount, GitHubAppNotInstalled, GitHubClient, Tokens, account
from headgate.adapters.forges.github.hook import hint, our_slug, place, verified
from headgate.adapters.forges.github.poll import GitHubSource, GitHubStands
from headgate.adapters.forges.github.pull import look
from headgate.adapters.forges.github.reporter import GitHubLander, GitHubTeller
from headgate.adapters.forges.pulls import ms
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Query, Rejected, forge_http
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.command import RemoteError
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.errors import UserError
from headgate.base.files import reason, text_of
from headgate.gate.state.change import Change, ChangeState
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Abilities, Hint, Ignored, Misdelivered
from headgate.ports.reporter import ReporterAway, ReportRefused

log = logging.getLogger("headgate.github")

FAILED_MAX = 100
"""Maximum number of failed deliveries that are examined."""

_NAME = r"(?!\.{1,2}/)[\w.-]{1,100}"

CAN = Abilities(
    votes=True,
    labels=True,
    statuses=True,
    checks=True,
    drafts=True,
    threads=True,
    file_comments=True,
    webhooks=True,
    any_case=True,
    edits=True,
    protection=True,
)


class Deliveries:
    """Turn GitHub's failed deliveries into hints."""

    def __init__(self, client: GitHubClient, tokens: Tokens, every_s: float) -> None:
        self._client, self._tokens, self._every_s = client, tokens, every_s
        self._failed: set[str] = set()
        """Ids of failed deliveries that were examined."""

    async def look_into(self, watching: Watching) -> None:
        """Read GitHub's log of deliveries at intervals."""
        while True:
            # Sleep first: a watch begins with a full query, which finds what deliveries before it announced.
            await asyncio.sleep(self._every_s)
            try:
                await self._failed_deliveries(watching)
            except (ReporterAway, NotThere, ForgeDenied, Rejected, LookupError, TypeError, ValueError) as error:
                log.info("%s: the log of its deliveries cannot be read: %s", self._client.account.name, error)

    async def _failed_deliveries(self, watching: Watching) -> None:
        key, path = self._tokens.app_key(), "/app/hook/deliveries"
        query: Query = {"per_page": FAILED_MAX, "status": "failure"}
        failed = (await self._client.get(key, path, query, urgent=False)).content
        fresh = [one for one in failed if str(one["guid"]) not in self._failed]
        # Remember only what the log still shows, so that the set does not grow.
        self._failed = {str(one["guid"]) for one in failed}
        us = frozenset(await self._tokens.us())
        for one in sorted(fresh, key=lambda one: ms(one["delivered_at"])):
            delivery = (await self._client.get(key, f"{path}/{one['id']}", urgent=False)).content
            body = msgspec.json.encode(delivery["request"]["payload"])
            known, account = watching.looks_at, self._client.account
            try:
                found = place(account, us, known, str(one["event"]), str(one["guid"]), body)
            except Misdelivered:
                continue
            if isinstance(found, Hint):
                watching.stir(found)


class GitHubForge(RestDriver):
    """Connect to one GitHub; see `ports.forge.Forge`."""

    page = re.compile(rf"/({_NAME}/{_NAME})/pull/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)

    def __init__(
        self,
        client: GitHubClient,
        tokens: Tokens,
        engine: Callable[[], GitEngine],
        every_s: float = EVERY_S,
        lands: str = "merge",
    ) -> None:
        """Make a driver. For `lands`, see `ports.forge.Abilities`."""
        self.can = msgspec.structs.replace(CAN, lands=lands)
        self._client, self._tokens = client, tokens
        self._own, self._stands = GitHubTeller(client, tokens), GitHubStands(client, engine)
        # Only an app may read the log of its deliveries.
        hooked = client.account.app_id and client.account.webhook_token
        beside = Deliveries(client, tokens, every_s).look_into if hooked else None
        watching = Watching(GitHubSource(client, tokens, engine, self._stands), every_s, beside)
        lander = GitHubLander(client, tokens, BranchReader(engine, client.account.name))
        super().__init__(client.account, client, watching, self._own, lander)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """Verify a delivery and return its hint; see `ports.forge.Forge`."""
        known, account = self._watching.looks_at, self._client.account
        # Verify before reading the slug from the body: a forged delivery could otherwise name an app, and Headgate
        # would ignore that app's events as its own.
        verified(account, headers, body)
        if not self._tokens.slug:
            self._tokens.learn(our_slug(account, headers, body))
        slug, login = self._tokens.slug, self._tokens.login
        us = frozenset({slug, f"{slug}[bot]"} if slug else {login} if login else set())
        return hint(account, us, known, headers, body)

    async def now(self, project: str, number: int) -> ChangeState:
        """Return the current state of a change; see `RestDriver`."""
        short = self._client.account.short(project)
        try:
            who = await self._tokens.of(short)
            us, none = await self._tokens.us(), dict[str, str]()
        except GitHubAppNotInstalled as error:
            raise NotThere(str(error)) from error
        pull = replace(await look(self._client, who, short, number), rules_shown=self._tokens.reads_rules(short))
        change_state, _ = await self._stands.of(who, project, pull, None, us, none, first=True)
        return change_state

    async def report(self, outgoing: OutboxMessage) -> None:
        """Report to the people at a change; see `ports.forge.Forge`."""
        try:
            await super().report(outgoing)
        except GitHubAppNotInstalled as error:
            raise ReportRefused(str(error)) from error

    async def conclude(self, change: Change, commit: str) -> None:
        """End a change that a push has landed; see `ports.forge.Shows`."""
        try:
            await self._own.conclude(change, commit)
        except GitHubAppNotInstalled as error:
            raise ReportRefused(str(error)) from error


def connect(given: DriverOptions) -> Connected:
    """Return the connection to the forge, without calling it yet. Raise UserError."""
    options = dict(given.options)
    for option in ("app_key", "sshkey"):
        if option in options:
            options[option] = str((given.directory / options[option]).expanduser())
    one = account(given.name, options, _key(options.get("app_key", "")))
    client = GitHubClient(one, partial(forge_http, one.verify_ssl), lambda: given.now_ms() / 1000, given.limits)
    tokens = Tokens(client, lambda: given.now_ms() / 1000)
    git = GitConnection(
        one.name,
        one.git,
        one.canonical_hostname,
        access=partial(_access, one, tokens),
        forget=lambda project: tokens.forget(one.short(project)),
    )
    forge = GitHubForge(client, tokens, given.engine, lands=options.get("land", "merge"))
    return Connected(git, forge, forge.close)


def _key(path: str) -> str:
    if not path:
        return ""
    try:
        # A wrong path, such as a disk image, must not fill the memory.
        return text_of(path, size_max=1_000_000)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"app_key: {path} cannot be read: {reason(error)}") from error


async def _access(one: GitHubAccount, tokens: Tokens, project: str) -> Mapping[str, str]:
    """Return git's settings for access to a project. Raise RemoteError."""
    try:
        return await tokens.git(one.short(project))
    except (GitHubAppNotInstalled, ReporterAway, ForgeDenied, Rejected) as error:
        raise RemoteError(("fetch",), 1, str(error)) from error
