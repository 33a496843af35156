"""Which commits a change adds to a branch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pygit2
import pytest

from headgate.adapters.git import soundness
from headgate.adapters.git.command import GitImpossible
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.objects import Parts
from headgate.adapters.git.remote import Remote
from headgate.testing.repositories import Repositories


@dataclass
class History:
    """Holds commits by name, and counts those that are read."""

    known: Mapping[str, tuple[str, ...]]
    path: Path = Path("/nowhere")
    read: int = 0

    def parents(self, commit: str) -> tuple[str, ...]:
        self.read += 1
        return self.known[commit]

    def parts(self, commit: str) -> Parts:
        raise NotImplementedError

    @property
    def repository(self) -> pygit2.Repository:
        raise NotImplementedError

    def all_of(self, commit: str) -> set[str]:
        found, waiting = {commit}, [commit]
        while waiting:
            more = set(self.known[waiting.pop()]) - found
            found |= more
            waiting += more
        return found


def test_a_change_of_a_young_part_of_a_long_branch_is_found_in_few_steps() -> None:
    line = {f"c{n}": (f"c{n - 1}",) if n else () for n in range(5_000)}
    history = History({**line, "change": ("c4996",)})
    assert soundness._few_steps(history, "c4999", "change") == (["change"], "c4996")
    assert history.read < 60


def test_an_older_one_is_found_by_a_longer_search() -> None:
    line = {f"c{n}": (f"c{n - 1}",) if n else () for n in range(5_000)}
    for age in (30, 150, 450):
        history = History({**line, "change": (f"c{4_999 - age}",)})
        assert soundness._few_steps(history, "c4999", "change") == (["change"], f"c{4_999 - age}")
    assert soundness._few_steps(History({**line, "change": ("c4000",)}), "c4999", "change") is None


@pytest.mark.heavy
def test_nothing_that_a_change_adds_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "SEARCHES", ((2, 2), (5, 6), (9, 20)))
    found = missed = 0
    for seed in range(2_000):
        chance = random.Random(seed)
        size = chance.randint(2, 30)
        known: dict[str, tuple[str, ...]] = {"0": ()}
        for n in range(1, size):
            near = [str(one) for one in range(max(0, n - chance.choice((1, 3, 12))), n)]
            known[str(n)] = tuple(chance.sample(near, min(len(near), chance.choice((1, 1, 2)))))
        history = History(known)
        head, commit = (str(chance.randrange(size)) for _ in range(2))
        if (answer := soundness._few_steps(history, head, commit)) is None:
            missed += 1
            continue
        new, left = answer
        found += 1
        assert history.all_of(commit) - history.all_of(head) <= set(new), seed
        assert left in history.all_of(head), seed
    assert found > 500 and missed > 20


async def test_every_commit_of_a_change_is_checked_and_flaws_of_the_branch_pass(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("code", {"d/a": "1\n"})
    bare, head = repositories.hub / "code", repositories.head("code")
    copy = MirrorRepository(bare, Remote(""))

    def commit(parent: str, *names: bytes) -> str:
        blob = copy.repository.create_blob(b"x\n")
        below = b"".join(b"100644 " + name + b"\0" + blob.raw for name in names)
        top = b"40000 d\0" + copy.repository.odb.write(pygit2.enums.ObjectType.TREE, below).raw
        tree = str(copy.repository.odb.write(pygit2.enums.ObjectType.TREE, top))
        return copy.write(tree, (parent,), 1, b"one\n")

    sound = commit(commit(commit(head, b"a"), b"a", b"b"), b"b")
    await soundness.check(copy, head, sound)
    with pytest.raises(GitImpossible, match=r"the directory d of one of its commits has \.git, which git would not"):
        await soundness.check(copy, head, commit(commit(head, b".git", b"a"), b"a"))
    landed = commit(head, b".git", b"a")
    await soundness.check(copy, landed, commit(commit(landed, b".git", b"a"), b".git", b"b"))
