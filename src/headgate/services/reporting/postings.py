"""What is asked of a forge: to land a change, to tell its people something."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from headgate.gate.actions import Land
from headgate.gate.work import LandRequest, ReportRequest, RepoState
from headgate.map.telling import Posting, QueueReport
from headgate.services.notices.naming import notice

LAND, SAY = "land", "say"
"""What is reported, beside the phases of a pipeline: that a change is to be merged; text alone."""


def to_land(action: Land, item: str, tenant: str, pipeline: str, now_ms: int) -> Posting:
    """Return the request to merge the first change of a landing."""
    work = action.work
    about = notice("report", action.id, tenant, pipeline, work.change, item, now_ms)
    report = QueueReport(**asdict(replace(about, buildset=work.buildset, message=work.note)), report=LAND)
    return Posting("", report, key=action.id, change=work.change, land=_trimmed(work))


def _trimmed(work: LandRequest) -> LandRequest:
    """Without what is of other projects."""
    project, state = work.change.project, work.state
    return replace(
        work,
        note="",
        state=RepoState(
            chain=tuple(one for one in state.chain if (one.project, one.commit) == (project, work.change.commit)),
            heads={name: heads for name, heads in state.heads.items() if name == project},
            merged={name: merged for name, merged in state.merged.items() if name == project},
            trees={name: trees for name, trees in state.trees.items() if name == project},
        ),
    )


def said(id: str, work: ReportRequest, tenant: str, now_ms: int) -> Posting:
    """Return a text for the people of a change, which votes for nothing."""
    about = notice("report", id, tenant, work.pipeline, work.change, "", now_ms)
    return Posting("", QueueReport(**asdict(replace(about, message=work.note)), report=SAY), key=id, change=work.change)
