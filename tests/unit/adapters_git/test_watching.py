"""Test which file changes trigger a poll of a local repository."""

from __future__ import annotations

import pytest
from watchfiles import Change

from headgate.adapters.git.poll.watch import _stirred

PROJECTS = {"/srv/git/api.git": "api", "/srv/git/api.git/nested": "nested"}


@pytest.mark.parametrize(
    ("path", "stirred"),
    [
        ("/srv/git/api.git/refs/heads/master", {"api"}),
        ("/srv/git/api.git/refs/for/master/topic", {"api"}),
        ("/srv/git/api.git/refs/notes/headgate", set()),
        ("/srv/git/api.git/refs/notes/headgate.lock", set()),
        ("/srv/git/api.git/refs/for/master/refs/notes/headgate", {"api"}),
        ("/srv/git/api.git/refs/heads/refs/notes/x", {"api"}),
        ("/srv/git/api.git/refs/notesy/x", {"api"}),
        ("/srv/git/other.git/refs/heads/master", set()),
    ],
)
def test_a_change_of_notes_causes_no_poll_unlike_refs_with_similar_names(path: str, stirred: set[str]) -> None:
    assert _stirred(PROJECTS, [(Change.modified, path)]) == stirred
