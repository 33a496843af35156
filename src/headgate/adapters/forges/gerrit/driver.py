"""Gerrit as a forge: see `ports.forge.Forge`."""

from __future__ import annotations

import base64
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping

from headgate.adapters.forges.gerrit.poll import Looker
from headgate.adapters.forges.gerrit.rest import GerritAway, GerritNotThere, GerritRefused, GerritRest
from headgate.adapters.forges.gerrit.reviewer import is_told, review
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.stream import ssh_options
from headgate.adapters.forges.gerrit.submit import submit
from headgate.adapters.forges.gerrit.watch import Watcher
from headgate.adapters.forges.gerrit.watchlist import GerritPace, GerritWatchList, wanted_of
from headgate.adapters.git.command import GitError
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.config.tenants import TenantProject
from headgate.gate.change import ChangeState
from headgate.gate.work import Landing, LandRequest
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Abilities, Hint, Ignored, MergeLanded, Misdelivered, NotLanded, Sighting
from headgate.ports.reporter import ReporterAway, ReportRefused

log = logging.getLogger("headgate.gerrit")


class GerritForge:
    """Connect to one Gerrit server. The only state is where to look next."""

    can = Abilities(
        lands="merge", votes=True, labels=True, topics=True, hashtags=True, drafts=True, threads=True,
        file_comments=True,
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        rest: GerritRest,
        engine: Callable[[], GitEngine],
        *,
        pace: GerritPace | None = None,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        program: str = "ssh",
    ) -> None:
        """Make a driver; `program` is the ssh client."""
        self.name = server.name
        self._server, self._rest, self._engine = server, rest, engine
        self._pace, self._program = pace or GerritPace(), program
        self._looker = Looker(rest, server, now_ms)
        self._projects: dict[str, TenantProject] = {}
        self._wanted = GerritWatchList()

    # --- watching

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """See `ports.forge.Watch`."""
        self._projects = dict(projects)

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """See `ports.forge.Watch`."""
        watcher = Watcher(
            self._rest, self._server, self._engine(), self._looker, self._wanted, self._projects, self._pace,
            self._program,
        )  # fmt: skip
        async for sighting in watcher.sightings(known, heads, refs):
            yield sighting

    def stir(self, hint: Hint) -> None:
        """See `ports.forge.Forge`."""
        self._wanted.add(*wanted_of(hint), hint.id)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """Ignore deliveries: Gerrit sends none."""
        raise Misdelivered("a connection to Gerrit takes no deliveries: it listens to the stream of events", 404)

    # --- single changes

    def named(self, url: str) -> str:
        """See `ports.forge.Forge`."""
        return self._looker.named(url)

    async def look_up(self, key: str) -> ChangeState | None:
        """See `ports.forge.Forge`."""
        project, _, number = key.rpartition("#")
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            return None
        try:
            info = await self._rest.change(int(number))
            if self._server.project(info.project) != project:
                return None
            return await self._looker.read(info, None)
        except GerritNotThere:
            return None
        except (GerritAway, GerritRefused) as error:
            raise _away(error) from error

    # --- reporting

    async def report(self, outgoing: OutboxMessage) -> None:
        """See `ports.forge.Forge`."""
        change = outgoing.change
        if change is None or not change.is_change:
            return  # Gerrit has no page for a ref
        try:
            # Read first, to see whether an earlier attempt already delivered this report.
            info = await self._rest.change(int(change.number))
            body = review(outgoing, info)
            if body is None or is_told(body, outgoing, info, self._server.user):
                return
            await self._review(info.number, change.commit, body)
        except ValueError as error:  # refusals, and values that are no votes
            raise ReportRefused(f"change {change.number}: {error}") from error
        except GerritAway as error:
            raise _away(error) from error

    async def _review(self, number: int, commit: str, body: dict[str, object]) -> None:
        """Send one review; if Gerrit refuses its votes or comments, send the message alone and say what is missing."""
        try:
            await self._rest.review(number, commit, body)
        except GerritNotThere:
            raise
        except GerritRefused as error:
            if not body.get("message") or not ({"labels", "comments"} & body.keys()):
                raise
            votes = body.get("labels")
            what = ", ".join(f"{name}: {value:+}" for name, value in votes.items()) if isinstance(votes, dict) else ""
            why = f"{body['message']}\n\nGerrit takes neither votes nor comments{f' ({what})' if what else ''}: {error}"
            bare = {key: value for key, value in body.items() if key not in ("labels", "comments")}
            await self._rest.review(number, commit, {**bare, "message": why})
            log.warning("change %s: votes or comments are refused: %s", number, error)

    # --- landing

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """See `ports.forge.Forge`."""
        mirror = self._engine().mirror(part.change.project, self.name)
        try:
            return await submit(self._rest, mirror, work, part.change)
        except (GerritAway, GitError) as error:
            raise _away(error) from error


def git_connection(server: Server, poll_interval_s: float = 30.0) -> GitConnection:
    """Return how git reaches the server: by ssh with the connection's key, or by HTTP with its password, which appears
    in no URL and on no command line."""
    config: dict[str, str] = {}
    if server.git_over_ssh:
        config["core.sshCommand"] = shlex.join(["ssh", *ssh_options(server)])
    else:
        credentials = base64.b64encode(f"{server.user}:{server.password}".encode()).decode()
        config[f"http.{server.baseurl}/.extraHeader"] = f"Authorization: Basic {credentials}"
        config[f"http.{server.baseurl}/.followRedirects"] = "false"  # git's requests contain the password, too
        if not server.verify_ssl:
            config[f"http.{server.baseurl}/.sslVerify"] = "false"

    async def access(project: str) -> Mapping[str, str]:
        return config

    base = server.git_url("").rstrip("/")
    return GitConnection(server.name, base, server.canonical_hostname, poll_interval_s=poll_interval_s, access=access)


def _away(error: Exception) -> ReporterAway:
    return ReporterAway(str(error), getattr(error, "wait_s", 0.0))
