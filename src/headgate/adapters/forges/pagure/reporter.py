"""Report on a pull request at Pagure, and merge it in the state that was tested."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headgate.adapters.forges.driver import BranchReader, ForgePatience
from headgate.adapters.forges.pagure.client import PagureClient, PagureUnauthorized
from headgate.adapters.forges.pagure.poll import HEAD_CHARS
from headgate.adapters.forges.reporter import ADDRESS, APART, ChangeReporter, body
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected
from headgate.adapters.reporters.wordings import WORDS, page
from headgate.base.ids import derived
from headgate.gate.state.change import Change
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import QueueReport
from headgate.ports import forge

_VOTE = re.compile(r"([+-])(?=1)")
_THUMB = re.compile(r":(?=thumbs(?:up|down):)")

MODES = ("merge", "merge-resolve", "merge-recursive", "merge-ort")
"""Modes that Pagure can imitate: it merges, or fast-forwards if that suffices, with the same tree."""
PATIENCE_S = 120.0
"""How long a merge may take at Pagure, which hands it to a worker."""
CONFLICTS = "CONFLICTS"
"""Merge status of a pull request with conflicts."""


class PagureTeller(ChangeReporter):
    """Report on changes at one Pagure. Its API cannot edit comments, so each report is a new one."""

    noun = "Pagure"

    def __init__(self, client: PagureClient) -> None:
        super().__init__(client, client)
        self._client = client

    def short(self, project: str) -> str:
        """Return the forge's name of a project; see `ChangeReporter`."""
        return self._client.account.short(project)

    def place(self, project: str) -> str:
        """Return the API's path of a project; see `ChangeReporter`."""
        return self._client.project(project)

    def advice(self, error: Exception) -> str:
        """Return advice about a refusal; see `ChangeReporter`."""
        if isinstance(error, PagureUnauthorized):
            return " (give the api_token the ACLs to flag and to comment on pull requests, and to flag commits)"
        return " (let the account of its api_token write there)" if isinstance(error, ForgeDenied) else ""

    async def all(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """Perform all actions of the reporter; see `ChangeReporter`."""
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
        # A deleted ref names the zero commit, for which Pagure accepts no flag.
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
    """Return the text changed so that it casts no vote, whatever jobs write: Pagure counts `+1` or `-1` anywhere, even
    in a date or a URL, and thumbs as votes of the author."""
    parts, at = list[str](), 0
    for found in ADDRESS.finditer(text):
        parts += [_apart(text[at : found.start()]), _VOTE.sub(lambda sign: f"%{ord(sign[1]):02X}", found[0])]
        at = found.end()
    return _THUMB.sub(f":{APART}", "".join((*parts, _apart(text[at:]))))


def _apart(text: str) -> str:
    return _VOTE.sub(rf"\1{APART}", text)


class PagureLander:
    """Merge at one Pagure. Pagure merges whatever the current head is, so the result is compared with what was
    tested."""

    def __init__(self, client: PagureClient, branches: BranchReader) -> None:
        self._client, self._branches = client, branches
        self._patience = ForgePatience(PATIENCE_S, client.now_s)

    async def land(self, work: LandRequest, part: Landing) -> forge.MergeLanded | forge.NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change, mode = part.change, forge.merge_mode(work, part.change)
        if mode not in MODES:
            return forge.NotLanded(
                f"Pagure cannot merge it the way it was tested ({mode}): set the project's merge-mode to merge"
            )
        try:
            # Read the head before the change: if it is merged in between, `_done` sees that.
            head = await self._branches.head(change.project, change.branch)
            there = await self._there(change)
            done = await self._done(work, change, there)
            if done is not None:
                return done
            if not forge.is_tested_on(work, change, head):
                why = f"{change.branch} is at {head[:12] or 'no commit'}, but this change was tested on another commit"
                return forge.NotLanded(why, moved=True)
            return await self._merge(work, change)
        except NotThere as error:
            return forge.NotLanded(f"Pagure refused to merge it: {error}")
        except PagureUnauthorized as error:
            # Pagure gives the same response for an invalid token and for a missing right; this raises if it refuses the
            # token itself.
            await self._client.let_in()
            return forge.NotLanded(f"Pagure refused to merge it: {error}; {_advice(error)}")
        except ForgeDenied as error:
            return forge.NotLanded(f"Pagure refused to merge it: {error}; {_advice(error)}")
        except Rejected as error:
            raise forge.ReporterAway(f"{change.key} cannot be read: {error}") from error

    async def _there(self, change: Change) -> Any:
        return (await self._client.get(self._client.key, self._path(change))).content

    def _path(self, change: Change) -> str:
        return f"{self._client.project(self._client.account.short(change.project))}/pull-request/{change.number}"

    async def _done(self, work: LandRequest, change: Change, there: Any) -> forge.MergeLanded | forge.NotLanded | None:
        """Return the result, or why the change cannot be merged as tested; None: try to merge."""
        status, head, branch = there["status"], there["commit_stop"], there["branch"]
        if status == "Merged":
            if (head, branch) != (change.commit, change.branch):
                return forge.NotLanded(
                    f"it has already been merged, with another head or into a branch other than {change.branch}"
                )
            return await self._landed(work, change)
        if branch != change.branch:
            return forge.NotLanded(f"it was tested on {change.branch}, but now targets {branch}")
        if head != change.commit:
            return forge.NotLanded(
                f"Pagure refused to merge it: its head is no longer {change.commit[:12]}, which was tested"
            )
        return forge.NotLanded("Pagure refused to merge it: it is closed") if status != "Open" else None

    async def _merge(self, work: LandRequest, change: Change) -> forge.MergeLanded | forge.NotLanded:
        try:
            await self._client.write("POST", self._client.key, f"{self._path(change)}/merge", {})
        except forge.ReporterAway:
            # It may be merged although no response came. Pagure also answers conflicts with a server error.
            there = await self._there(change)
            done = await self._done(work, change, there)
            if done is None and there.get("cached_merge_status") != CONFLICTS:
                raise
            return done or forge.NotLanded(f"Pagure refused to merge it: it conflicts with {change.branch}")
        except (ForgeDenied, NotThere, Rejected) as error:
            if isinstance(error, PagureUnauthorized):
                await self._client.let_in()
            done = await self._done(work, change, await self._there(change))
            reason = " ".join(str(error).split())
            return done or forge.NotLanded(f"Pagure refused to merge it: {reason}; {_advice(error)}")
        return await self._taken(work, change)

    async def _taken(self, work: LandRequest, change: Change) -> forge.MergeLanded | forge.NotLanded:
        """Return the result of a merge that Pagure has accepted: it may still be in progress, and may fail."""
        key, there = f"{change.key} {change.commit}", await self._there(change)
        if there["status"] == "Merged":
            self._patience.forget(key)
            # Otherwise Pagure merged another head or into another branch: the author acted at the last moment.
            same = (there["commit_stop"], there["branch"]) == (change.commit, change.branch)
            return await self._landed(work, change) if same else forge.MergeLanded(differs=True)
        done = await self._done(work, change, there)
        if done is None and self._patience.lasts(key):
            raise forge.ReportPutOff("Pagure has accepted the merge, but has not performed it yet")
        return done or forge.NotLanded(
            f"Pagure accepted the merge, but has not performed it within {PATIENCE_S:.0f} s: its worker is down, or "
            "the project allows only fast-forwards (disable that option)"
        )

    async def _landed(self, work: LandRequest, change: Change) -> forge.MergeLanded:
        """Compare the branch with the tested commit by git, since Pagure does not report the merge commit. Return the
        landing."""
        commit = await self._branches.merge_of(change.project, change.branch, change.commit)
        wanted = forge.tested_tree(work, change)
        if not commit or not wanted:
            # A merge that is not found in the branch counts as different, so that people check it.
            return forge.MergeLanded(commit, differs=bool(wanted))
        return forge.MergeLanded(
            commit, differs=await self._branches.tree(change.project, change.branch, commit) != wanted
        )


def _advice(error: Exception) -> str:
    low = str(error).lower()
    if "assign" in low:
        return "assign it to Headgate's account, or allow people other than assignees to merge (the project's options)"
    if "score" in low or "review" in low:
        return "it needs the score that the project requires"
    if isinstance(error, PagureUnauthorized):
        return "give the api_token the ACL to merge pull requests"
    if isinstance(error, ForgeDenied):
        return "give Headgate's account commit access to the project"
    return "the page of the pull request says more"
