"""Test that the reference page of the map matches the declarations, and that the program uses every declared place."""

from collections.abc import Iterator
from pathlib import Path

from headgate.map.tree import Dir, declared, place
from headgate.map.trees import page, trees
from tests.house.sources import ALL, SOURCE, facts

BY_KIND = {"executor", "fingergw", "launcher", "merger", "scheduler", "web"}
"""Below `components`: a process finds its own by the name of its kind."""
BY_STREAM = {"action_bodies": "by_hand"}
"""Place -> the stream by which the program reaches it."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "map.md"


def test_the_page_is_not_stale():
    assert PAGE.read_text() == page(), "write it anew: python -m headgate.map > docs/reference/map.md"


def _attributes(dir: type[Dir]) -> Iterator[tuple[str, bool]]:
    """(attribute, is there a writer) of every place here and below."""
    for owner in dir.__mro__:
        for name, child in vars(owner).items():
            if any(child is one for one in declared(dir)):
                if isinstance(child, place):
                    yield name, bool(child.by)
                else:
                    yield from _attributes(child.dir)


def test_every_place_with_a_writer_is_used_by_the_program() -> None:
    outside = [p for p in ALL if p.relative_to(SOURCE).parts[0] not in ("map", "testing")]
    outside += [SOURCE / "map" / "inventory" / "entries.py"]  # records of an object are composed there
    used = {attribute for path in outside for attribute in facts(path).attributes}
    written = {name for tree in trees() for name, writer in _attributes(tree.dir) if writer}
    streamed = {place for place, stream in BY_STREAM.items() if stream in used}
    assert written - used - BY_KIND - streamed == set()
