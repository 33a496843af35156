"""Reports on a pull request: status, labels, review, check run, and one comment that is edited.

Told twice is told once: a status replaces itself; a check run, a comment and a review of ours are looked for before a
new one is made, unless this process made it.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from headgate.adapters.forges.github.client import Client
from headgate.adapters.forges.github.tokens import Tokens
from headgate.adapters.forges.rest import Denied, Key, NotThere, Rejected
from headgate.adapters.reporting.wording import WORDS, page
from headgate.base.texts import line, visible
from headgate.config.reading.check import as_list
from headgate.gate.change import Change
from headgate.map.telling import Posting, QueueReport
from headgate.ports.reporter import ReportRefused

BODY_MAX, TITLE_MAX, DESCRIPTION_MAX = 65_000, 200, 139
"""Characters; GitHub takes 65,536 in a body and 140 in a description."""
MESSAGE_MAX_BYTES = 60_000
ANNOTATIONS_MAX, ANNOTATIONS_ALL_MAX = 50, 1_000
"""Of one request; of one check run."""
KNOWN_MAX = 5_000
CONCLUDED = frozenset({"success", "failure", "cancelled", "skipped", "neutral"})
LEVELS = {"info": "notice", "warning": "warning", "error": "failure"}
REVIEWS = {"approve": "APPROVE", "request-changes": "REQUEST_CHANGES", "comment": "COMMENT"}
_MARK = re.compile(r"<!-- headgate [^ ]+ -->\Z")
_MENTION = re.compile(r"(?<![\w`])@(?=[A-Za-z0-9])")


class Teller:
    """Tells of changes at one GitHub."""

    def __init__(self, client: Client, tokens: Tokens) -> None:
        self._client, self._tokens = client, tokens
        self._known: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        """Kind, place and name of what we made -> its id."""
        self._concluded: set[int] = set()
        """Check runs of those that have ended."""
        self._changing: dict[str, asyncio.Lock] = {}

    async def tell(self, posting: Posting) -> None:
        """Do what the reporter says.  Raise ReporterAway, ReportRefused."""
        change, how = posting.change, posting.how
        assert change is not None, "what is told at a forge is told of a change"
        project = self._client.account.short(change.project)
        try:
            key = await self._tokens.of(project)
            await self._all(key, f"/repos/{project}", change, posting.report, how)
        except NotThere as error:
            raise ReportRefused(f"{change.project} has no {change.id} any more: {error}") from error
        except (Denied, Rejected) as error:
            raise ReportRefused(
                f"{change.project}: GitHub does not take the report: {error}{_advice(error)}"
            ) from error

    async def _all(self, key: Key, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        name = f"{report.tenant}/{report.pipeline}"
        if how.get("status"):
            await self._status(key, repo, change, report, name, how)
        if not change.is_change:
            return
        await self._labels(key, f"{repo}/issues/{change.number}/labels", how)
        if how.get("review"):
            await self._review(key, f"{repo}/pulls/{change.number}/reviews", change, report, how)
        trouble = ""
        if how.get("check"):
            trouble = await self._check(key, repo, change, report, name, str(how["check"]))
        if how.get("comment", True) or trouble:
            await self._comment(key, repo, change, report, name, trouble)

    async def _status(
        self, key: Key, repo: str, change: Change, report: QueueReport, name: str, how: Mapping[str, Any]
    ) -> None:
        state = str(how["status"])
        description = f"{report.pipeline} status: {state}"
        url = str(how.get("status-url") or page(report))
        said = {"state": state, "context": name, "description": description[:DESCRIPTION_MAX]}
        commit = change.commit if change.commit.strip("0") else change.old_commit
        await self._client.write("POST", key, f"{repo}/statuses/{commit}", said | ({"target_url": url} if url else {}))

    async def _labels(self, key: Key, path: str, how: Mapping[str, Any]) -> None:
        if labels := [str(one) for one in as_list(how.get("label"))]:
            await self._client.write("POST", key, path, {"labels": labels})
        for label in as_list(how.get("unlabel")):
            with suppress(NotThere):  # it is off already
                await self._client.write("DELETE", key, f"{path}/{quote(str(label), safe='')}")

    async def _review(self, key: Key, path: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """One for each report: its mark says which."""
        mark = f"<!-- headgate {report.id} -->"
        async for reviews in self._client.pages(key, path):
            if any(mark in (one.get("body") or "") for one in reviews):
                return
        body = str(how.get("review-body") or heading(report))
        said = {"event": REVIEWS[str(how["review"])], "commit_id": change.commit, "body": f"{body}\n\n{mark}"}
        await self._client.write("POST", key, path, said)

    # --- the check run

    async def _check(self, key: Key, repo: str, change: Change, report: QueueReport, name: str, value: str) -> str:
        """Make or change the check run of this pipeline; return why it cannot be, for people."""
        said = check_run(report, name, change, value, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        batches = list(_batches(notes_of(report, change)))
        output = {"title": said["output"]["title"], "summary": said["output"]["summary"]}
        try:
            async with self._changing.setdefault(f"{repo} {change.commit} {name}", asyncio.Lock()):
                id = await self._own_run(key, repo, change.commit, name, ends=value in CONCLUDED)
                first = {**said, "output": {**output, "annotations": batches[0]}} if batches else said
                if id is None:
                    made = await self._client.write("POST", key, f"{repo}/check-runs", first)
                    id = int(made.said["id"])
                else:
                    first = {k: v for k, v in first.items() if k != "head_sha"}
                    await self._client.write("PATCH", key, f"{repo}/check-runs/{id}", first)
                self._remember("run", f"{repo} {change.commit}", name, id)
                if value in CONCLUDED:
                    self._concluded.add(id)
                for batch in batches[1:]:
                    more = {"output": {**output, "annotations": batch}}
                    await self._client.write("PATCH", key, f"{repo}/check-runs/{id}", more)
        except (Denied, Rejected) as error:
            return f"The check run {name} could not be written: {error}{_advice(error)}"
        finally:
            self._changing.pop(f"{repo} {change.commit} {name}", None)
        return ""

    async def _own_run(self, key: Key, repo: str, commit: str, name: str, *, ends: bool) -> int | None:
        """Return the run to change: ours.  One that has ended stays as it is, unless its end is told again."""
        known = self._known.get(("run", f"{repo} {commit}", name))
        if known is not None:
            return known if ends or known not in self._concluded else None
        for one in await self._runs(key, repo, commit):
            if one["name"] == name and (ends or one["status"] != "completed"):
                return int(one["id"])
        return None

    async def _runs(self, key: Key, repo: str, commit: str) -> Sequence[Mapping[str, Any]]:
        """Return our check runs of a commit; they are asked for once, then this process knows them."""
        if ("asked", f"{repo} {commit}", "") in self._known:
            return ()
        query: dict[str, str | int] = {"per_page": 100}
        if self._client.account.app_id:
            query["app_id"] = int(self._client.account.app_id)
        found = (await self._client.get(key, f"{repo}/commits/{commit}/check-runs", query)).said["check_runs"]
        self._remember("asked", f"{repo} {commit}", "", 0)
        for one in reversed(found):
            self._remember("run", f"{repo} {commit}", str(one["name"]), int(one["id"]))
            if one["status"] == "completed":
                self._concluded.add(int(one["id"]))
        return list(found)

    # --- the comment

    async def _comment(self, key: Key, repo: str, change: Change, report: QueueReport, name: str, trouble: str) -> None:
        """Say it in the one comment of this pipeline, which is edited."""
        mark = _mark(name)
        said = {"body": body(report, mark, trouble)}
        place = f"{repo}/issues/{change.number}"
        if ("asked", place, "") not in self._known:
            await self._own_comments(key, place)
        id = self._known.get(("comment", place, mark))
        if id is not None:
            try:
                await self._client.write("PATCH", key, f"{repo}/issues/comments/{id}", said)
                return
            except NotThere:
                self._known.pop(("comment", place, mark), None)  # somebody removed it
        made = await self._client.write("POST", key, f"{place}/comments", said)
        self._remember("comment", place, mark, int(made.said["id"]))

    async def _own_comments(self, key: Key, place: str) -> None:
        """Find those of all pipelines, once."""
        us = await self._tokens.us()
        async for comments in self._client.pages(key, f"{place}/comments"):
            for one in comments:
                found = _MARK.search(one.get("body") or "")
                if found is not None and (one.get("user") or {}).get("login") in us:
                    self._remember("comment", place, found[0], int(one["id"]))
        self._remember("asked", place, "", 0)

    def _remember(self, kind: str, place: str, name: str, id: int) -> None:
        self._known[kind, place, name] = id
        self._known.move_to_end((kind, place, name))
        while len(self._known) > KNOWN_MAX:
            _, gone = self._known.popitem(last=False)
            self._concluded.discard(gone)


def heading(report: QueueReport) -> str:
    """Return what became of it, in one line."""
    return line(f"{report.pipeline}: {WORDS.get(report.report, report.report)}", TITLE_MAX)


def body(report: QueueReport, mark: str, trouble: str = "") -> str:
    """Return a comment: it fits, and calls nobody by name whom a job or a message names."""
    said = _MENTION.sub("@\u200b", visible(report.message).replace("<!--", "&lt;!--"))
    address = page(report)
    parts = [f"**{heading(report)}**", said, trouble, address if address and address not in said else ""]
    text = "\n\n".join(part for part in parts if part.strip())
    room = BODY_MAX - len(mark)
    if len(text) > room:
        text = f"{text[: room - 100]}…\n\nThe rest is left out; the page has it."
    return f"{text}\n\n{mark}"


def check_run(report: QueueReport, name: str, change: Change, value: str, now: str) -> dict[str, Any]:
    """Return a check run that says the value of the configuration."""
    about = {"tenant": report.tenant, "pipeline": report.pipeline, "change": change.number}
    summary = body(report, "")[: BODY_MAX - 1].strip() or heading(report)
    said: dict[str, Any] = {
        "name": name,
        "head_sha": change.commit,
        "external_id": msgspec.json.encode(about).decode(),
        "output": {"title": heading(report), "summary": summary},
    }
    if address := page(report):
        said["details_url"] = address
    if value in CONCLUDED:
        return said | {"status": "completed", "conclusion": value, "completed_at": now}
    return said | {"status": value}


def notes_of(report: QueueReport, change: Change) -> list[dict[str, Any]]:
    """Return what jobs say of lines: each once, of files that the change has, those that weigh more first."""
    files = None if change.files is None else frozenset(change.files)
    found: dict[bytes, dict[str, Any]] = {}
    for path, comments in report.comments.items():
        for one in comments if files is None or path in files else ():
            note = _annotation(path, one)
            if note is not None:
                found.setdefault(msgspec.json.encode(note), note)
    order = list(LEVELS.values())
    notes = sorted(found.values(), key=lambda note: -order.index(note["annotation_level"]))
    return notes[:ANNOTATIONS_ALL_MAX]


def _annotation(path: str, one: Any) -> dict[str, Any] | None:
    start = one.range.start_line if one.range is not None else one.line
    end = one.range.end_line if one.range is not None else one.line
    if start < 1 or end < start:
        return None
    message = visible(one.message).encode()[:MESSAGE_MAX_BYTES].decode("utf-8", "ignore")
    note = {
        "path": path,
        "start_line": start,
        "end_line": end,
        "annotation_level": LEVELS.get(one.level or "", "warning"),
        "message": message or "(nothing is said)",
    }
    if one.range is not None and start == end:
        note |= {"start_column": one.range.start_character + 1, "end_column": one.range.end_character + 1}
    return note


def _batches(notes: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for start in range(0, len(notes), ANNOTATIONS_MAX):
        yield notes[start : start + ANNOTATIONS_MAX]


def _mark(name: str) -> str:
    """Return what the comment of a pipeline ends in, which nobody sees."""
    return f"<!-- headgate {re.sub(r'[^A-Za-z0-9_./]', '-', name).replace('--', '-_')} -->"


def _advice(error: Exception) -> str:
    if "Resource not accessible" in str(error):
        return " (the app lacks a permission: its owner grants it in the app's settings, and who installed it accepts)"
    if "You must authenticate via a GitHub App" in str(error):
        return " (check runs need an app: set app_id and app_key, or report a status instead)"
    return ""
