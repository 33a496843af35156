"""Test changes that edit files which the branch has renamed, so that only their merge shows what they change."""

from __future__ import annotations

from headgate.config.model import FrozenJob
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play


def watched() -> Play:
    """Return a play with a job for files below `guarded/`."""
    return Play(layout=PlayLayout((FrozenJob(name="unit"), FrozenJob(name="audit")), only={"audit": "guarded/"}))


def test_jobs_for_a_path_that_only_the_merge_changes_run() -> None:
    play = watched()
    play.approve("A")
    play.merges()
    assert play.builds == [("A", "unit")]
    play.displaced = {"B": ("guarded/f",)}
    play.approve("B")
    play.merges()
    assert play.builds == [("A", "unit"), ("B", "unit"), ("B", "audit")]


def test_all_jobs_run_if_the_paths_that_a_merge_changes_are_unknown() -> None:
    play = watched()
    play.displaced = {"A": None}
    play.approve("A")
    play.merges()
    assert play.builds == [("A", "unit"), ("A", "audit")]


def test_paths_of_an_earlier_base_do_not_count() -> None:
    play = watched()
    play.approve("A")
    play.displaced = {"B": ("guarded/f",)}
    play.approve("B")
    play.merges()
    play.displaced = {}
    play.fails("A")
    play.merges("B")
    assert play.builds == [("B", "unit")]


def test_configuration_that_only_the_merge_changes_is_checked() -> None:
    play = Play()
    play.texts, play.displaced = {"p": "broken"}, {"A": ("zuul.yaml",)}
    play.approve("A")
    play.merges()
    assert play.merging_names == ["A"], "it is merged again, as a change of configuration"
    play.merges()
    assert play.ended == {"A": "CONFIG_ERROR"} and "it is broken" in play.messages["A"]


def test_items_behind_are_tested_with_configuration_that_only_a_merge_changes() -> None:
    play = Play()
    play.texts, play.displaced = {"p": "brandnew"}, {"A": ("zuul.yaml",)}
    play.propose(play.change("A"))
    play.propose(play.change("B", project="q"))
    play.approve("A", "B")
    play.merges("A")
    assert play.merging_names == ["A", "B"], "the merge of B, which has not read this configuration, begins again"
    play.merges()
    assert play.builds == [("A", "brandnew"), ("B", "brandnew")]
    assert not play.merging, "the second answer is no news"
