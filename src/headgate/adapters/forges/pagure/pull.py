"""One pull request as Pagure has it now: two calls, turned into what all forges have in common."""

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
"""Prefix of Pagure's own comments about assignees and tags; its other comments are about new commits or the end."""
MERGES = {"FFORWARD": True, "MERGE": True, "CONFLICTS": False}
"""Pagure's cached merge status -> whether the change can be merged; a query does not refresh that status."""
_VALUES = {"thumbsup": 1, "thumbsdown": -1}


class PagureFlag(ProgramReport, frozen=True):
    """Represent what a program reports; Pagure does not say for which commit."""

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
        """See `AnyPull`: footers stand in the initial comment."""
        return self.body or self.title

    @property
    def approved(self) -> bool:
        """See `AnyPull`."""
        return self.reached is True

    @property
    def votes(self) -> tuple[Vote, ...]:
        """See `AnyPull`: the last vote of each person on these commits."""
        return newest_of_each([one for one in self.reviews if one.id > self.floor])

    @property
    def score(self) -> int:
        """Return the number of thumbs up less thumbs down, counting the last one of each person."""
        return sum(_VALUES[one.value] for one in self.votes)


async def look(client: PagureClient, project: str, number: int, *, urgent: bool = True) -> PagurePull:
    """Return a pull request of `project` (Pagure's name). Raise NotThere, Denied, Rejected, ReporterAway."""
    path = f"{client.project(project)}/pull-request/{number}"
    said = (await client.get(client.key, path, urgent=urgent)).said
    flags = (await client.get(client.key, f"{path}/flag", urgent=urgent)).said
    try:
        return _pull(project, client.account.web, said, flags["flags"] or [])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(200, f"what it says of it has another form: {error!r}"[:300]) from error


def _pull(project: str, web: str, said: Mapping[str, Any], flags: list[Any]) -> PagurePull:
    if not said["commit_stop"]:
        raise Rejected(200, "it has no commits")
    comments = sorted(said["comments"] or (), key=lambda one: int(one["id"]))
    own = [one for one in comments if one.get("notification")]
    renewed = [one for one in own if not str(one["comment"]).lower().startswith(_METADATA)]
    people = [one for one in comments if not one.get("notification")]
    status = str(said["status"])
    return PagurePull(
        project=project,
        number=int(said["id"]),
        title=str(said["title"] or ""),
        body=str(said.get("initial_comment") or "").replace("\r\n", "\n"),
        url=str(said.get("full_url") or f"{web}/{project}/pull-request/{said['id']}"),
        state="MERGED" if status == "Merged" else "OPEN" if status == "Open" else "CLOSED",
        draft=False,
        created_ms=_ms(said["date_created"]),
        updated=moment(said),
        head=str(said["commit_stop"]),
        base=str(said["branch"]),
        base_commit="",
        author=_account(said["user"]),
        mergeable=MERGES.get(str(said.get("cached_merge_status"))),
        merge_commit="",
        labels=tuple(str(one) for one in (said.get("tags") or ())[:LABELS_MAX]),
        reviews=tuple(_review(one) for one in people if _thumb(one)),
        remarks=tuple(_remark(one) for one in people if not _thumb(one)),
        reports=tuple(sorted((_flag(one) for one in flags), key=lambda one: -one.at_ms)),
        begins=str(said.get("commit_start") or ""),
        assignee=_account(said.get("assignee")).name,
        reached=said.get("threshold_reached"),
        merges=str(said.get("cached_merge_status") or "unknown"),
        renewed_ms=_ms(renewed[-1]["date_created"]) if renewed else 0,
        floor=int(renewed[-1]["id"]) if renewed else 0,
    )


def moment(said: Mapping[str, Any]) -> str:
    """Return the time of the last update of a pull request or an entry of a list. Pagure's times have whole seconds,
    within which it may be closed, reopened and edited: so its state is part of the result."""
    newest = max((int(one["id"]) for one in said["comments"] or ()), default=0)
    words = [str(said.get(name)) for name in ("status", "title", "initial_comment", "tags", "branch")]
    return f"{said.get('last_updated') or said['updated_on']}.{derived(*words, str(newest))[:8]}"


def _ms(said: Any) -> int:
    return int(said) * 1000


def _account(said: Mapping[str, Any] | None) -> ForgeAccount:
    """Return the login of an account; for a deleted account Pagure returns none."""
    return ForgeAccount(str(said["name"])) if said else ForgeAccount()


def _thumb(said: Mapping[str, Any]) -> str:
    """Return the vote in a comment; empty if there is none. Comments on lines do not vote."""
    text = str(said["comment"] or "")
    if said.get("commit"):
        return ""
    return "thumbsup" if UP in text else "thumbsdown" if DOWN in text else ""


def _review(said: Mapping[str, Any]) -> Reviewed:
    return Reviewed(int(said["id"]), _account(said["user"]), _thumb(said), _ms(said["date_created"]), False)


def _remark(said: Mapping[str, Any]) -> PullRemark:
    return PullRemark(int(said["id"]), _account(said["user"]), str(said["comment"] or ""), _ms(said["date_created"]))


def _flag(said: Mapping[str, Any]) -> PagureFlag:
    who, url = _account(said.get("user")).name, str(said.get("url") or "")
    at_ms = _ms(said.get("date_updated") or said["date_created"])
    text, state = str(said.get("comment") or ""), str(said["status"]).lower()
    return PagureFlag(ProgramStatus(who, str(said["username"]), state, url=url), at_ms, text=text)
