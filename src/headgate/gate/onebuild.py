"""What people do by hand to one build: the events that ask for it."""

from __future__ import annotations

import msgspec


class CancelBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancel-build"):
    """Order by hand: stop this build and count its job as not passed."""

    build: str
    why: str
    """For people: who did, and why."""


class RerunBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="rerun-build"):
    """Order by hand: run the job of this failed build once more before its item is reported."""

    build: str
