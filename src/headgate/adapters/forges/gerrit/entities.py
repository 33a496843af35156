"""Declare the parts of Gerrit's REST responses and stream events that Headgate reads."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

SATISFIED = frozenset({"SATISFIED", "OVERRIDDEN", "NOT_APPLICABLE", "FORCED"})
"""Results of submit requirements that do not block a change."""


class GerritAccount(msgspec.Struct, frozen=True, kw_only=True):
    id: int = msgspec.field(name="_account_id", default=0)
    name: str = ""
    email: str = ""
    username: str = ""

    @property
    def who(self) -> str:
        """Return a name of the account: the first of username, email and name that is set."""
        return self.username or self.email or self.name or (f"account {self.id}" if self.id else "")


class GerritVote(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the vote of one account on one label; without `value` the account may vote but has not."""

    id: int = msgspec.field(name="_account_id", default=0)
    name: str = ""
    email: str = ""
    username: str = ""
    value: int = 0
    date: str = ""
    tag: str = ""


class GerritLabel(msgspec.Struct, frozen=True, kw_only=True):
    all: tuple[GerritVote, ...] = ()
    approved: GerritAccount | None = None
    rejected: GerritAccount | None = None
    blocking: bool = False
    optional: bool = False


class GerritExpression(msgspec.Struct, frozen=True, kw_only=True):
    expression: str = ""
    passing_atoms: tuple[str, ...] = ()
    failing_atoms: tuple[str, ...] = ()


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the result of one submit requirement."""

    name: str
    status: str
    # Administrators write it for people, so messages prefer it to the expression.
    description: str = ""
    submittability: GerritExpression = msgspec.field(
        name="submittability_expression_result", default=GerritExpression()
    )

    @property
    def is_met(self) -> bool:
        return self.status in SATISFIED


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    commit: str = ""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    commit: str = ""
    """Id of the commit; set only if the commit was not requested by its id."""
    message: str = ""
    parents: tuple[Parent, ...] = ()


class GerritFile(msgspec.Struct, frozen=True, kw_only=True):
    status: str = "M"
    old_path: str = ""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    number: int = msgspec.field(name="_number")
    ref: str = ""
    uploader: GerritAccount = GerritAccount()
    created: str = ""
    commit: Commit = Commit()
    files: dict[str, GerritFile] | None = None


class GerritMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a message on a change, written by a person or by the server."""

    id: str
    author: GerritAccount = GerritAccount()
    date: str = ""
    message: str = ""
    tag: str = ""
    revision: int = msgspec.field(name="_revision_number", default=0)
    accounts: tuple[GerritAccount, ...] = msgspec.field(name="accounts_in_message", default=())
    """Accounts that the message mentions as `<GERRIT_ACCOUNT_1000002>`."""


class GerritComment(msgspec.Struct, frozen=True, kw_only=True):
    message: str = ""
    of_message: str = msgspec.field(name="change_message_id", default="")
    """Id of the message that the comment was published with."""


class ChangeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a change, as Gerrit's REST API does."""

    number: int = msgspec.field(name="_number")
    project: str
    branch: str
    change_id: str
    status: str
    """NEW, MERGED or ABANDONED."""
    subject: str = ""
    topic: str = ""
    hashtags: tuple[str, ...] = ()
    owner: GerritAccount = GerritAccount()
    updated: str = ""
    created: str = ""
    work_in_progress: bool = False
    is_private: bool = False
    current_revision: str = ""
    revisions: dict[str, Revision] = {}
    labels: dict[str, GerritLabel] = {}
    requirements: tuple[Requirement, ...] = msgspec.field(name="submit_requirements", default=())
    submittable: bool | None = None
    """Whether the change can be submitted; None if that was not requested, or the server is too old."""
    permitted_labels: dict[str, tuple[str, ...]] = {}
    """Labels that our account may vote on, with the permitted values."""
    unresolved_comment_count: int = 0
    messages: tuple[GerritMessage, ...] = ()
    mark: str = msgspec.field(name="meta_rev_id", default="")
    """Changes with every event on the change."""
    more: bool = msgspec.field(name="_more_changes", default=False)
    """Set on the last element of a list: the list has further elements."""

    @property
    def is_open(self) -> bool:
        return self.status == "NEW"

    @property
    def current(self) -> Revision | None:
        return self.revisions.get(self.current_revision)


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a change above or below another one in git."""

    project: str = ""
    commit: Commit = Commit()
    number: int = msgspec.field(name="_change_number", default=0)
    revision: int = msgspec.field(name="_revision_number", default=0)
    current_revision: int = msgspec.field(name="_current_revision_number", default=0)
    status: str = ""


class RelatedChanges(msgspec.Struct, frozen=True, kw_only=True):
    changes: tuple[Related, ...] = ()


class ChangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    submit_whole_topic: bool = False


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    change: ChangeSettings = ChangeSettings()


class StreamChange(msgspec.Struct, frozen=True, kw_only=True):
    number: int = 0
    project: str = ""


class RefUpdate(msgspec.Struct, frozen=True, kw_only=True):
    project: str = ""
    ref: str = msgspec.field(name="refName", default="")


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Represent one line of the stream. It only names what may have changed; everything else is read over REST."""

    type: str
    change: StreamChange | None = None
    update: RefUpdate | None = msgspec.field(name="refUpdate", default=None)
    project: str | StreamChange = ""
    """Only for events that are about a project."""


def moment(text: str) -> float:
    """Return a time of the server, in UTC, as seconds since the epoch; 0.0 for an invalid time."""
    try:
        # Gerrit writes `2026-01-02 03:04:05.000000000`; nobody needs the fraction.
        return datetime.fromisoformat(text.partition(".")[0]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
