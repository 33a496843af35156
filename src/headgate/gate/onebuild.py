"""What people do by hand to one build: the events that ask for it."""

from __future__ import annotations

import msgspec


class CancelBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancel-build"):
    """By hand: stop this build; its job counts as one that did not pass."""

    build: str
    why: str
    """For people: who did, and why."""


class RerunBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="rerun-build"):
    """By hand: run the job of this build once more, which did not pass, before its item is reported."""

    build: str
