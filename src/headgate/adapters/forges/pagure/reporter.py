"""Reports on a pull request at Pagure: a flag of each pipeline, and comments.

Pagure lets nobody edit a comment over its API, so each report that is to be commented is one more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headgate.adapters.forges.pagure.changestate import HEAD_CHARS
from headgate.adapters.forges.pagure.client import PagureClient, PagureUnauthorized
from headgate.adapters.forges.reporter import ChangeReporter, body
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey
from headgate.adapters.reporters.wordings import WORDS, page
from headgate.base.ids import derived
from headgate.gate.change import Change
from headgate.map.outbox import QueueReport

_ADDRESS = re.compile(r"https?://[^\s<>()\[\]\"'`]+")
_VOTE = re.compile(r"([+-])(?=1)")
_THUMB = re.compile(r":(?=thumbs(?:up|down):)")
_APART = "\u200b"


class PagureTeller(ChangeReporter):
    """Report on changes at one Pagure."""

    noun = "Pagure"

    def __init__(self, client: PagureClient) -> None:
        super().__init__(client, client)
        self._client = client

    def short(self, project: str) -> str:
        """See `ChangeReporter`."""
        return self._client.account.short(project)

    def place(self, project: str) -> str:
        """See `ChangeReporter`."""
        return self._client.project(project)

    def advice(self, error: Exception) -> str:
        """See `ChangeReporter`."""
        if isinstance(error, PagureUnauthorized):
            return " (give the api_token the ACLs to flag and to comment on pull requests, and to flag commits)"
        return " (let the account of its api_token write there)" if isinstance(error, ForgeDenied) else ""

    async def all(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """See `ChangeReporter`."""
        try:
            if how.get("status"):
                await self._flag(key, repo, change, report, how)
            if change.is_change and how.get("comment", True):
                await self._say(key, f"{repo}/pull-request/{change.number}", report)
        except PagureUnauthorized:
            await self._client.let_in()
            raise

    async def _flag(
        self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]
    ) -> None:
        """Set the flag of this pipeline, which has a fixed id."""
        name, commit = f"{report.tenant}/{report.pipeline}", change.commit
        if not commit.strip("0"):
            commit = change.old_commit
        place = f"{repo}/pull-request/{change.number}" if change.is_change else f"{repo}/c/{commit}"
        flag = {
            "username": f"{self._client.account.app_name}: {name}",
            # One flag for each pipeline and change: a later report with
            # the same id replaces it, and a repeated one changes nothing.
            "uid": derived("flag", self._client.account.name, name, change.key if change.is_change else commit),
            "status": str(how["status"]),
            "comment": f"{report.pipeline} {WORDS.get(report.report, report.report)} ({commit[:HEAD_CHARS]})",
            "url": str(how.get("status-url") or page(report) or self._client.account.web),
        }
        await self._client.write("POST", key, f"{place}/flag", flag)

    async def _say(self, key: ForgeKey, place: str, report: QueueReport) -> None:
        """Comment once for each report, which a mark identifies."""
        mark = f"<!-- headgate {derived('comment', report.id)} -->"
        us = await self._client.us()
        there = (await self._client.get(key, place)).content
        for one in there["comments"] or ():
            if str(one.get("comment")).endswith(mark) and (one.get("user") or {}).get("name") in us:
                return
        await self._client.write("POST", key, f"{place}/comment", {"comment": voteless(body(report, mark))})


def voteless(text: str) -> str:
    """Return a text without votes, whatever jobs say: Pagure counts `+1` or `-1` anywhere, even in a date or a URL, and
    thumbs as votes of the author."""
    parts, at = list[str](), 0
    for found in _ADDRESS.finditer(text):
        parts += [_apart(text[at : found.start()]), _VOTE.sub(lambda sign: f"%{ord(sign[1]):02X}", found[0])]
        at = found.end()
    return _THUMB.sub(f":{_APART}", "".join((*parts, _apart(text[at:]))))


def _apart(text: str) -> str:
    return _VOTE.sub(rf"\1{_APART}", text)
