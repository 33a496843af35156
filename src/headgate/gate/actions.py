"""Define what a turn asks of the world; each action is made durable in the commit that decided it."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.config.forges.facts import PipelineCheck
from headgate.gate.change import Change, Tell
from headgate.gate.model import Item
from headgate.gate.work import BuildSpec, LandRequest, MergeRequest, ReportRequest

REFUSED, SETTLED, WAITS, ALARM, LANDED = "refused", "settled", "waits", "alarm", "landed"
"""What is said to the people of a change beside the results of pipelines: that it does not come in; that this holds no
more; that it has passed and waits; that they have to look after it; that it has landed."""


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
    """The pipeline's reporters that it is told by, where there are such; empty: it is said to the people of the change
    whatever the pipeline tells to whom."""
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
    """Does the result say anything of the change: were its jobs what decided?"""
    refused: bool = False
    """It was never in the queue, of which its people are told in words of their own."""


@dataclass(frozen=True, slots=True)
class MarkLanded:
    """Ask to show at the forge that a change landed by a push of the tested commit."""

    id: str
    work: ReportRequest
    """`landed` names the commit, and the note says what people read where the change is closed."""
    contained: bool
    """The branch has the change's own commits by that, so that the forge sees it by itself."""
    early: bool
    """More is to land before its item ends, of which nobody knows yet what comes."""


@dataclass(frozen=True, slots=True)
class Supersede:
    """Ask the other pipeline to let the change with this key leave."""

    pipeline: str
    key: str


@dataclass(frozen=True, slots=True)
class Vouch:
    """State what the pipeline says of the change, for other pipelines to require."""

    change: Change
    word: PipelineCheck


Action = Merge | Run | Land | Report | MarkLanded | Cancel | Resume | Record | Supersede | Tell | Vouch


class Faulty(Exception):
    """Report that deciding on this item raises; the cause says what."""

    def __init__(self, item: str) -> None:
        super().__init__(f"item {item} cannot be handled")
        self.item = item
