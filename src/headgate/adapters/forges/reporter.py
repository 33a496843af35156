"""Report on a pull request: a status, a review, and one comment for each pipeline, which is edited.

A repeated report changes nothing: a status replaces itself. Unless this process made our comment or review, it searches
for one before it makes another.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected, Rest
from headgate.adapters.reporters.wordings import WORDS, page
from headgate.base.texts import line, visible
from headgate.gate.state.change import Change
from headgate.map.outbox import OutboxMessage, QueueReport
from headgate.ports.reporter import ReportRefused

BODY_MAX, TITLE_MAX, DESCRIPTION_MAX = 65_000, 200, 139
"""Lengths in characters; GitHub accepts 65,536 in a body and 140 in a description."""
KNOWN_MAX = 5_000
"""Maximum number of our own objects whose ids are remembered."""
MARK = re.compile(r"<!-- headgate [^ ]+ -->\Z")

APART = "\u200b"
"""An invisible character; inserted into markup, it makes the forge show the markup as text."""
ADDRESS = re.compile(r"https?://[^\s<>()\[\]\"'`]+")
"""URLs are not escaped: they contain no markup, and people follow them."""
_ACTIVE = re.compile(
    r"(?<![A-Za-z0-9])@(?=\w)"  # mentions somebody
    r"|<(?=[A-Za-z/!?])"  # HTML, also a comment like the mark of a report
    r"|!(?=\[)"  # an image, whose server learns who reads it
    r"|\](?=[(\[:])"  # a link whose text hides its destination
    r"|&(?=#|[A-Za-z]+;)"  # an entity, which may encode any of these
    r"|[`~](?=[`~]{2})"  # a fence, which turns the rest into code
)


class ForgeIdentity(Protocol):
    """Name the account that Headgate uses at a project."""

    async def of(self, project: str) -> ForgeKey:
        """Return the key for calls about a project (owner/name). Raise NotLetIn, ReporterAway."""
        ...

    async def us(self) -> tuple[str, ...]:
        """Return the accounts that Headgate writes as.  Raise ReporterAway."""
        ...


class ChangeReporter(ABC):
    """Report on changes at one forge."""

    noun = "the forge"
    """Name of the forge, for messages."""

    def __init__(self, rest: Rest, who: ForgeIdentity) -> None:
        self._rest, self._who = rest, who
        self.known: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        """(kind, place, name) of an object that we made -> its id."""

    @abstractmethod
    def short(self, project: str) -> str:
        """Return `owner/name` of a canonical name."""

    def place(self, project: str) -> str:
        """Return the API's path of a project (owner/name)."""
        return f"/repos/{project}"

    @abstractmethod
    async def all(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """Perform all actions of the reporter. `repo`: the path of the project."""

    def comments(self, key: ForgeKey, path: str) -> AsyncIterator[Any]:
        """Yield the comments on a change, page by page."""
        return self._rest.pages(key, path)

    def advice(self, error: Exception) -> str:
        """Return advice about a refusal, to append to its message."""
        return ""

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Perform the reporter's actions. Raise ReporterAway, ReportRefused."""
        change, how = outgoing.change, outgoing.how
        assert change is not None, "a report to a forge is about a change"
        project = self.short(change.project)
        with self._refused(change, "does not accept the report"):
            key = await self._who.of(project)
            await self.all(key, self.place(project), change, outgoing.report, how)

    async def conclude(self, change: Change, commit: str) -> None:
        """Close a change that landed by a push and is still open. Raise ReporterAway, ReportRefused."""
        project = self.short(change.project)
        with self._refused(change, f"does not close the change that landed as {commit[:12]}"):
            await self.end(await self._who.of(project), f"{self.place(project)}/pulls/{change.number}", commit)

    async def end(self, key: ForgeKey, path: str, commit: str) -> None:
        """Mark the change as merged by this commit if the forge supports that, or else close it."""
        await self._rest.write("PATCH", key, path, {"state": "closed"})

    @contextmanager
    def _refused(self, change: Change, what: str) -> Iterator[None]:
        """Raise ReportRefused if the forge refuses."""
        try:
            yield
        except NotThere as error:
            raise ReportRefused(f"{change.project} no longer has {change.id}: {error}") from error
        except (ForgeDenied, Rejected) as error:
            why = f"{self.noun} {what}: {error}{self.advice(error)}"
            raise ReportRefused(f"{change.project}: {why}") from error

    async def status(
        self, key: ForgeKey, repo: str, change: Change, report: QueueReport, name: str, how: Mapping[str, Any]
    ) -> None:
        """Give the commit a status."""
        state = str(how["status"])
        description = f"{report.pipeline} status: {state}"
        url = str(how.get("status-url") or page(report))
        status = {"state": state, "context": name, "description": description[:DESCRIPTION_MAX]}
        # A deleted ref names the zero commit, for which no forge accepts a status.
        commit = change.commit if change.commit.strip("0") else change.old_commit
        await self._rest.write("POST", key, f"{repo}/statuses/{commit}", status | ({"target_url": url} if url else {}))

    async def review(self, key: ForgeKey, path: str, report: QueueReport, review: Mapping[str, Any]) -> None:
        """Post a review once for each report, which a mark in its `body` identifies."""
        mark = f"<!-- headgate {report.id} -->"
        us = await self._who.us()
        async for reviews in self._rest.pages(key, path):
            # Check the author as well as the mark: anybody may copy the mark into a review of their own.
            if any(mark in (one.get("body") or "") and (one.get("user") or {}).get("login") in us for one in reviews):
                return
        await self._rest.write("POST", key, path, {**review, "body": f"{review['body']}\n\n{mark}"})

    async def comment(
        self, key: ForgeKey, repo: str, change: Change, report: QueueReport, name: str, problem: str
    ) -> None:
        """Write the report into the one comment of this pipeline, which is edited."""
        mark = mark_of(name)
        content = {"body": body(report, mark, problem)}
        place = f"{repo}/issues/{change.number}"
        # Before a restart, or in another process, Headgate may have written the comment; one search finds it, so that
        # there is no second one.
        if ("listed", place, "") not in self.known:
            await self._own_comments(key, place)
        id = self.known.get(("comment", place, mark))
        if id is not None:
            try:
                await self._rest.write("PATCH", key, f"{repo}/issues/comments/{id}", content)
                return
            except NotThere:
                self.known.pop(("comment", place, mark), None)  # somebody removed it
        made = await self._rest.write("POST", key, f"{place}/comments", content)
        self.remember("comment", place, mark, int(made.content["id"]))

    async def _own_comments(self, key: ForgeKey, place: str) -> None:
        """Find our comments for all pipelines, once."""
        us = await self._who.us()
        async for comments in self.comments(key, f"{place}/comments"):
            for one in comments:
                found = MARK.search(one.get("body") or "")
                if found is not None and (one.get("user") or {}).get("login") in us:
                    self.remember("comment", place, found[0], int(one["id"]))
        self.remember("listed", place, "", 0)

    def remember(self, kind: str, place: str, name: str, id: int) -> None:
        """Remember the id of an object that we made; forget the oldest ids."""
        self.known[kind, place, name] = id
        self.known.move_to_end((kind, place, name))
        while len(self.known) > KNOWN_MAX:
            self.known.popitem(last=False)


def heading(report: QueueReport) -> str:
    """Return the outcome as one line."""
    return line(f"{report.pipeline}: {WORDS.get(report.report, report.report)}", TITLE_MAX)


def body(report: QueueReport, mark: str, problem: str = "") -> str:
    """Return the text of a comment: short enough, and with the markup of jobs and messages disabled."""
    message = inert(visible(report.message))
    address = page(report)
    parts = [f"**{heading(report)}**", message, problem, address if address and address not in message else ""]
    text = "\n\n".join(part for part in parts if part.strip())
    room = BODY_MAX - len(mark)
    if len(text) > room:
        text = f"{text[: room - 100]}…\n\nThe rest is left out; see the page."
    return f"{text}\n\n{mark}"


def mark_of(name: str) -> str:
    """Return the invisible mark at the end of a pipeline's comment."""
    # Renderers disagree on two hyphens within an HTML comment: some end it there, and the rest of the name would show.
    return f"<!-- headgate {re.sub(r'[^A-Za-z0-9_./]', '-', name).replace('--', '-_')} -->"


def inert(text: str) -> str:
    """Return text that mentions nobody, hides no link's destination, loads nothing and hides nothing; URLs stay intact.

    Reports carry Headgate's name, and forges render them as Markdown. Entities are no alternative to the invisible
    character: in log lines, which are code, readers would see the entity itself.
    """
    parts, at = list[str](), 0
    for found in ADDRESS.finditer(text):
        parts += [_inert(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join((*parts, _inert(text[at:])))


def _inert(text: str) -> str:
    return _ACTIVE.sub(lambda found: found[0] + APART, text)
