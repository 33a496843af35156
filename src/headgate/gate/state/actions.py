"""Define the actions of a turn; the commit that stores the turn's decision also stores its actions."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.base.errors import HeadgateError
from headgate.config.forges.facts import PipelineCheck
from headgate.gate.state.change import Change, Tell
from headgate.gate.state.model import Item
from headgate.gate.state.works import BuildSpec, LandRequest, MergeRequest, ReportRequest

REFUSED, SETTLED, WAITS, ALARM, LANDED = "refused", "settled", "waits", "alarm", "landed"
"""Kinds of reports that are not results of pipelines: the change is not enqueued; that no longer holds; it has passed
and waits; it needs a person's attention; it has landed."""


@dataclass(frozen=True, slots=True)
class Merge:
    id: str
    work: MergeRequest
    precedence: int


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    spec: BuildSpec
    precedence: int


@dataclass(frozen=True, slots=True)
class Land:
    id: str
    work: LandRequest
    precedence: int


@dataclass(frozen=True, slots=True)
class Report:
    id: str
    work: ReportRequest
    precedence: int
    phase: str = ""
    """Phase whose reporters in the pipeline make the report, if there are any; empty: the report is made on the change,
    whatever reporters the pipeline has."""
    kind: str = ""
    """The phase, or `REFUSED` or one of its neighbours for a report without a phase."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ask to stop the build or merge with this id."""

    id: str
    build: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """Ask the paused build with this id to continue."""

    id: str


@dataclass(frozen=True, slots=True)
class Record:
    """Ask to write the item's result to the history; the item has left the queue."""

    item: Item
    result: str
    message: str
    tested: bool = True
    """Whether the item's jobs decided the result, so that it shows the quality of the change."""
    refused: bool = False
    """Whether the item never entered the queue; a separate report explains why."""


@dataclass(frozen=True, slots=True)
class MarkLanded:
    """Ask to show at the forge that a change landed by a push of the tested commit."""

    id: str
    work: ReportRequest
    """Report whose `landed` names the commit, and whose note is posted when the change is closed."""
    contained: bool
    """Whether the branch now has the change's own commits, so that the forge detects on its own that it is merged."""
    early: bool
    """Whether other changes of its item have yet to land, which may fail."""


@dataclass(frozen=True, slots=True)
class Supersede:
    """Ask the other pipeline to remove the change with this key."""

    pipeline: str
    key: str


@dataclass(frozen=True, slots=True)
class Vouch:
    """State the pipeline's result for the change, which other pipelines may require."""

    change: Change
    word: PipelineCheck


Action = Merge | Run | Land | Report | MarkLanded | Cancel | Resume | Record | Supersede | Tell | Vouch


class Faulty(HeadgateError):
    """Report that an exception was raised by the decision on this item; the exception is the cause of this one."""

    def __init__(self, item: str) -> None:
        super().__init__(f"item {item} cannot be handled")
        self.item = item
