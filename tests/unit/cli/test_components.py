"""Test what `headgate components` reports of executors that lack a feature."""

from __future__ import annotations

from headgate.cli.components import lacking
from headgate.web.shapes import ComponentShape


def test_missing_features_of_builds_are_listed_with_their_executor() -> None:
    fields = {"hostname": "one", "state": "running", "version": "1", "pid": 1, "accepting": True}
    poor = ComponentShape(name="executor/a", lacks=(("Jobs have no network: no pasta"),), **fields)  # type: ignore[arg-type]  # as they are
    rich = ComponentShape(name="executor/b", **fields)  # type: ignore[arg-type]  # as they are
    assert lacking({"executor": [poor, rich]}) == ["executor/a: Jobs have no network: no pasta"]
