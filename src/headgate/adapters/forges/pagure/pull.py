"""Read one pull request from Pagure with two calls, and convert it to the form that all forges share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.adapters.forges.changestate import LABELS_MAX
from headgate.adapters.forges.pagure.client import PagureClient
from headgate.adapters.forges.pulls import AnyPull, ProgramReport, PullRemark, Reviewed, newest_of_each
from headgate.adapters.forges.rest import Rejected
from headgate.base.ids import derived
from headgate.config.forges.facts import ForgeAccount, ProgramStatus, Vote

UP, DOWN = ":thumbsup:", ":thumbsdown:"
_METADATA = "**metadata update from"
"""Prefix of Pagure's own comments about assignees and tags; its other comments report new commits or the end."""
MERGES = {"FFORWARD": True, "MERGE": True, "CONFLICTS": False}
"""Pagure's cached merge status -> whether the change can be merged; a query does not refresh that status."""
_VALUES = {"thumbsup": 1, "thumbsdown": -1}


class PagureFlag(ProgramReport, frozen=True):
    """Represent what a program reports; Pagure does not store for which commit."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class PagurePull(AnyPull):
    """Describe a pull request at one moment."""

    begins: str
    """Id of the first commit."""
    assignee: str
    """Login of the assignee; empty if there is none."""
    reached: bool | None
    """Whether it has reached the score that its project requires; None if the project requires none."""
    merges: str
    """Pagure's cached merge status: FFORWARD, MERGE, CONFLICTS, NO_CHANGE or unknown."""
    renewed_ms: int
    """Time of Pagure's last comment about new commits."""
    floor: int
    """Number of the last comment that refers to former commits."""

    @property
    def message(self) -> str:
        """Return the text that contains footers: the initial comment; see `AnyPull`."""
        return self.body or self.title

    @property
    def approved(self) -> bool:
        """Return whether the change is approved; see `AnyPull`."""
        return self.reached is True

    @property
    def votes(self) -> tuple[Vote, ...]:
        """Return the last vote of each person on these commits; see `AnyPull`."""
        return newest_of_each([one for one in self.reviews if one.id > self.floor])

    @property
    def score(self) -> int:
        """Return the number of thumbs up less thumbs down, counting the last one of each person."""
        return sum(_VALUES[one.value] for one in self.votes)


async def look(client: PagureClient, project: str, number: int, *, urgent: bool = True) -> PagurePull:
    """Return a pull request of `project` (Pagure's name). Raise NotThere, Denied, Rejected, ReporterAway."""
    path = f"{client.project(project)}/pull-request/{number}"
    pull = (await client.get(client.key, path, urgent=urgent)).content
    flags = (await client.get(client.key, f"{path}/flag", urgent=urgent)).content
    return _pull(project, client.account.web, pull, flags["flags"] or [])


def _pull(project: str, web: str, pull: Mapping[str, Any], flags: list[Any]) -> PagurePull:
    if not pull["commit_stop"]:
        raise Rejected(200, "it has no commits")
    comments = sorted(pull["comments"] or (), key=lambda one: int(one["id"]))
    own = [one for one in comments if one.get("notification")]
    # Pagure's own comments announce new commits, except for those about metadata.
    renewed = [one for one in own if not str(one["comment"]).lower().startswith(_METADATA)]
    people = [one for one in comments if not one.get("notification")]
    status = str(pull["status"])
    return PagurePull(
        project=project,
        number=int(pull["id"]),
        title=str(pull["title"] or ""),
        body=str(pull.get("initial_comment") or "").replace("\r\n", "\n"),
        url=str(pull.get("full_url") or f"{web}/{project}/pull-request/{pull['id']}"),
        state="MERGED" if status == "Merged" else "OPEN" if status == "Open" else "CLOSED",
        # Pagure has no drafts.
        draft=False,
        created_ms=_ms(pull["date_created"]),
        updated=moment(pull),
        head=str(pull["commit_stop"]),
        base=str(pull["branch"]),
        # The API does not report the commit of the target branch, nor the merge commit.
        base_commit="",
        author=_account(pull["user"]),
        mergeable=MERGES.get(str(pull.get("cached_merge_status"))),
        merge_commit="",
        labels=tuple(str(one) for one in (pull.get("tags") or ())[:LABELS_MAX]),
        reviews=tuple(_review(one) for one in people if _thumb(one)),
        remarks=tuple(_remark(one) for one in people if not _thumb(one)),
        reports=tuple(sorted((_flag(one) for one in flags), key=lambda one: -one.at_ms)),
        begins=str(pull.get("commit_start") or ""),
        assignee=_account(pull.get("assignee")).name,
        reached=pull.get("threshold_reached"),
        merges=str(pull.get("cached_merge_status") or "unknown"),
        renewed_ms=_ms(renewed[-1]["date_created"]) if renewed else 0,
        floor=int(renewed[-1]["id"]) if renewed else 0,
    )


def moment(pull: Mapping[str, Any]) -> str:
    """Return the time of the last update of a pull request or an entry of a list, with a digest of its state: Pagure's
    times have whole seconds, and a change may be closed, reopened and edited within one."""
    newest = max((int(one["id"]) for one in pull["comments"] or ()), default=0)
    words = [str(pull.get(name)) for name in ("status", "title", "initial_comment", "tags", "branch")]
    return f"{pull.get('last_updated') or pull['updated_on']}.{derived(*words, str(newest))[:8]}"


def _ms(seconds: Any) -> int:
    return int(seconds) * 1000


def _account(user: Mapping[str, Any] | None) -> ForgeAccount:
    """Return the login of an account; for a deleted account Pagure returns none."""
    return ForgeAccount(str(user["name"])) if user else ForgeAccount()


def _thumb(comment: Mapping[str, Any]) -> str:
    """Return the vote in a comment; empty if there is none. Comments on lines do not vote."""
    text = str(comment["comment"] or "")
    if comment.get("commit"):
        return ""
    return "thumbsup" if UP in text else "thumbsdown" if DOWN in text else ""


def _review(comment: Mapping[str, Any]) -> Reviewed:
    return Reviewed(int(comment["id"]), _account(comment["user"]), _thumb(comment), _ms(comment["date_created"]), False)


def _remark(comment: Mapping[str, Any]) -> PullRemark:
    return PullRemark(
        int(comment["id"]), _account(comment["user"]), str(comment["comment"] or ""), _ms(comment["date_created"])
    )


def _flag(flag: Mapping[str, Any]) -> PagureFlag:
    who, url = _account(flag.get("user")).name, str(flag.get("url") or "")
    at_ms = _ms(flag.get("date_updated") or flag["date_created"])
    text, state = str(flag.get("comment") or ""), str(flag["status"]).lower()
    return PagureFlag(ProgramStatus(who, str(flag["username"]), state, url=url), at_ms, text=text)
