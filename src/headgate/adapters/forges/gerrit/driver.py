"""Connect to Gerrit, and review and submit changes there: see `ports.forge.Forge`."""

from __future__ import annotations

import base64
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pygit2
from msgspec.structs import asdict

from headgate.adapters.forges.gerrit import api
from headgate.adapters.forges.gerrit.entities import ChangeInfo, moment
from headgate.adapters.forges.gerrit.poll import Looker
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.stream import ssh_options
from headgate.adapters.forges.gerrit.watch import Watcher
from headgate.adapters.forges.gerrit.watchlist import GerritPace, GerritWatchList, wanted_of
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.git.command import GitError
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.mirror import MirrorRepository
from headgate.base.texts import visible
from headgate.config.tenants import TenantProject
from headgate.gate.state.change import HEADS, Change, ChangeState
from headgate.gate.state.returns import FileComment
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import OutboxMessage
from headgate.ports import forge
from headgate.ports.reporter import ReporterAway, ReportRefused

log = logging.getLogger("headgate.gerrit")


class GerritForge:
    """Connect to one Gerrit server. The only state is where to look next."""

    can = forge.Abilities(
        lands="merge", votes=True, labels=True, topics=True, hashtags=True, drafts=True, threads=True,
        file_comments=True,
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        rest: api.GerritRest,
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
    ) -> AsyncIterator[forge.Sighting]:
        """See `ports.forge.Watch`."""
        watcher = Watcher(
            self._rest, self._server, self._engine(), self._looker, self._wanted, self._projects, self._pace,
            self._program,
        )  # fmt: skip
        async for sighting in watcher.sightings(known, heads, refs):
            yield sighting

    def stir(self, hint: forge.Hint) -> None:
        """See `ports.forge.Forge`."""
        self._wanted.add(*wanted_of(hint), hint.id)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> forge.Hint | forge.Ignored:
        """Ignore deliveries: Gerrit sends none."""
        raise forge.Misdelivered("a connection to Gerrit takes no deliveries: it listens to the stream of events", 404)

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
        except api.GerritNotThere:
            return None
        except (api.GerritAway, api.GerritRefused) as error:
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
        except api.GerritAway as error:
            raise _away(error) from error

    async def _review(self, number: int, commit: str, body: dict[str, object]) -> None:
        """Send one review; if Gerrit refuses its votes or comments, send the message alone and say what is missing."""
        try:
            await self._rest.review(number, commit, body)
        except api.GerritNotThere:
            raise
        except api.GerritRefused as error:
            if not body.get("message") or not ({"labels", "comments"} & body.keys()):
                raise
            votes = body.get("labels")
            what = ", ".join(f"{name}: {value:+}" for name, value in votes.items()) if isinstance(votes, dict) else ""
            why = f"{body['message']}\n\nGerrit takes neither votes nor comments{f' ({what})' if what else ''}: {error}"
            bare = {key: value for key, value in body.items() if key not in ("labels", "comments")}
            await self._rest.review(number, commit, {**bare, "message": why})
            log.warning("change %s: votes or comments are refused: %s", number, error)

    # --- landing

    async def land(self, work: LandRequest, part: Landing) -> forge.MergeLanded | forge.NotLanded:
        """See `ports.forge.Forge`."""
        mirror = self._engine().mirror(part.change.project, self.name)
        try:
            return await submit(self._rest, mirror, work, part.change)
        except (api.GerritAway, GitError) as error:
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


KEYS = frozenset({"comment", "submit", "notify", "checks-api"})
"""Options of a reporter that are no labels; every other key is a label."""
TAG = "autogenerated:headgate:"
"""Prefix of the tag of our messages; the name of the pipeline follows."""
MESSAGE_MAX_BYTES = 14_000
"""Gerrit accepts 16 KiB, which must also hold a line that Gerrit adds and one that we may add."""
COMMENTS_MAX = 1_000
"""Most comments on files in one review."""
_CUT = "\n… (truncated)"


def review(outgoing: OutboxMessage, info: ChangeInfo) -> dict[str, Any] | None:
    """Return the body of the review (JSON); None if it would be empty. Votes and comments apply to the current patch
    set, the message to the patch set of the report. Gerrit ignores labels that it does not have: the message names
    them, and ValueError is raised where there is no message."""
    change, how, report = outgoing.change, outgoing.how, outgoing.report
    current = change is not None and change.commit == info.current_revision
    body: dict[str, Any] = {"tag": f"{TAG}{report.pipeline}"}
    labels = {name: int(value) for name, value in how.items() if name not in KEYS} if current else {}
    strange = ", ".join(name for name in labels if name not in info.labels)
    message = visible(report.message)
    if strange:
        why = f"{info.project} has no label {strange}: nobody is given that vote"
        message = f"{cut(message)}\n\n{why}"
        if not how.get("comment", True):
            raise ValueError(why)
    if how.get("comment", True) and message:
        body["message"] = message if strange else cut(message)
    if current:
        if known := {name: value for name, value in labels.items() if name in info.labels}:
            body["labels"] = known
        files = info.current.files if info.current is not None else None
        if comments := file_comments(report.comments, files):
            body["comments"] = comments
    if len(body) == 1:
        return None
    if "notify" in how:
        body["notify"] = how["notify"]
    return body


def is_told(body: Mapping[str, Any], outgoing: OutboxMessage, info: ChangeInfo, us: str) -> bool:
    """Return whether the review was already posted by an attempt whose answer was lost."""
    return any(
        message.tag == body["tag"]
        and message.author.username == us
        # Gerrit's dates are cut to seconds here, so a message of the same second seems up to a second older.
        and moment(message.date) * 1000 >= outgoing.report.at_ms - 1_000
        and (not body.get("message") or body["message"].strip() in message.message)
        for message in info.messages
    )


def file_comments(
    reported: Mapping[str, tuple[FileComment, ...]], files: Mapping[str, object] | None
) -> dict[str, list[dict[str, Any]]]:
    """Return the jobs' comments on files that the change has, up to the limit."""
    found: dict[str, list[dict[str, Any]]] = {}
    left = COMMENTS_MAX
    for path, comments in reported.items():
        if files is not None and path not in files:
            continue
        for comment in comments[:left]:
            one: dict[str, Any] = {"message": visible(comment.message)}
            if comment.line:
                one["line"] = comment.line
            if comment.range is not None:
                one["range"] = asdict(comment.range)
            if comment.level == "error":
                one["unresolved"] = True
            found.setdefault(path, []).append(one)
            left -= 1
    return found


def cut(text: str) -> str:
    """Return a message that is short enough for Gerrit."""
    data = text.encode()
    if len(data) <= MESSAGE_MAX_BYTES:
        return text
    return data[: MESSAGE_MAX_BYTES - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


UPON_MAX = 20
"""Commits that others may have added on top of ours before we look."""


async def submit(
    rest: api.GerritRest, mirror: MirrorRepository, work: LandRequest, change: Change
) -> forge.MergeLanded | forge.NotLanded:
    """Have Gerrit merge the change.  Raise GerritAway, GitError."""
    try:
        info = await rest.change(int(change.number))
    except api.GerritNotThere as error:
        return forge.NotLanded(f"change {change.number} is not there any more, or hidden from us: {error}")
    if info.status == "MERGED":
        return await _landed(mirror, work, change)
    if not info.is_open:
        return forge.NotLanded(f"change {change.number} is {info.status.lower()}")
    if info.current_revision != change.commit:
        number = info.current.number if info.current is not None else "another one"
        return forge.NotLanded(
            f"patch set {change.patchset} was tested, and patch set {number} is the current one by now"
        )
    if info.branch != change.branch:
        return forge.NotLanded(f"change {change.number} was tested on {change.branch}, and is for {info.branch} by now")
    if not forge.is_tested_on(work, change, await _head(mirror, change)):
        return forge.NotLanded(f"{change.branch} is not where change {change.number} was tested", moved=True)
    try:
        # The revision is part of the call, so Gerrit refuses if another patch set has come since.
        info = await rest.submit(int(change.number), change.commit)
    except api.GerritConflict as error:
        return forge.NotLanded(_why(change, error))
    except api.GerritRefused as error:
        return forge.NotLanded(f"Gerrit does not let us submit it: {error}")
    if info.status != "MERGED":
        return forge.NotLanded(f"Gerrit took the submit, but the change is {info.status}; see its page")
    return await _landed(mirror, work, change)


def _why(change: Change, error: api.GerritConflict) -> str:
    return f"Gerrit does not submit change {change.number}: {error}"


async def _landed(mirror: MirrorRepository, work: LandRequest, change: Change) -> forge.MergeLanded:
    """Compare the branch with the tested commit."""
    head, tested = await _head(mirror, change), forge.tested_tree(work, change)
    if not tested:
        return forge.MergeLanded(head)
    try:
        if await mirror.bring({HEADS + change.branch: head}):
            raise GitError(("fetch",), 1, f"{head} of {change.project} cannot be had")
        # Others may have pushed on top before we look, so the tested tree is also sought a few commits below the head.
        commit = _with_tree(mirror, head, tested)
    except (KeyError, pygit2.GitError) as error:
        raise GitError(("fetch",), 1, f"{head} of {change.project} cannot be read: {error}") from error
    return forge.MergeLanded(commit or head, differs=not commit)


def _with_tree(mirror: MirrorRepository, head: str, tested: str) -> str:
    """Return the commit of a branch that has this tree: its head, or a commit below later pushes; empty if there is
    none."""
    at = head
    for _ in range(UPON_MAX):
        if str(mirror.tree(at).id) == tested:
            return at
        parents = mirror.parents(at)
        if not parents:
            break
        at = parents[0]
    return ""


async def _head(mirror: MirrorRepository, change: Change) -> str:
    ref = HEADS + change.branch
    heads = await mirror.remote.refs(ref)
    if ref not in heads:
        raise GitError(("ls-remote",), 1, f"{change.project} has no branch {change.branch}")
    return heads[ref]


PATHS = ("sshkey", "known_hosts")


def connect(given: DriverOptions) -> Connected:
    """Raise UserError for what is wrong with the section."""
    paths = {
        name: str(given.directory / Path(given.options[name]).expanduser()) for name in PATHS if name in given.options
    }
    server = Server.of(given.name, {**given.options, **paths})
    client = api.gerrit_client(server)
    pace = GerritPace.every(float(given.options.get("poll_delay", 0)))
    forge = GerritForge(server, api.GerritRest(client, server), given.engine, pace=pace, now_ms=given.now_ms)
    return Connected(git_connection(server), forge, client.aclose)
