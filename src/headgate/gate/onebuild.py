"""Define the events by which people ask by hand that one build is stopped, or its job run once more."""

from __future__ import annotations

import msgspec


class CancelBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancel-build"):
    """Order by hand: stop this build and count its job as not passed."""

    build: str
    why: str
    """Who cancelled it and why, for people."""


class RerunBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="rerun-build"):
    """Order by hand: run the job of this failed build once more before its item is reported."""

    build: str
