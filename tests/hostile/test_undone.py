"""Test changes that take back what somebody else has landed, without being seen to touch it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.series import files
from headgate.gate.state.gitwork import MergeItem, ReviewAnswer, ReviewRequest
from headgate.gate.state.works import MergeAnswer, MergeRequest
from headgate.testing.repositories import Repositories, run_git

PROJECT = "git.example/code"
BEFORE, AFTER = {"zuul.yaml": "- project: {}\n"}, {"zuul.yaml": "- project: {check: {jobs: [audit]}}\n"}


class Branch:
    """A branch that has merged a commit, `other`, and then a change of the configuration, `fix`."""

    def __init__(self, root: Path) -> None:
        self.repositories, self._count = Repositories(root), 0
        self.repositories.create("code", {**BEFORE, "README": "read me\n"})
        self.work = self.repositories.work("code")
        self.begin = self.repositories.head("code")
        self.fix = self.commit(self.begin, AFTER)
        self.other = self.commit(self.begin, {"other": "x\n"})
        run_git("merge", "-q", "--no-ff", "-m", "Merge", self.fix, at=self.work)
        self.head = run_git("rev-parse", "HEAD", at=self.work)
        run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=self.work)
        connection = GitConnection("local", str(self.repositories.hub), "git.example")
        self.engine = GitEngine(root / "git", {"local": connection})

    def commit(self, parent: str, changed: dict[str, str], *parents: str) -> str:
        run_git("checkout", "-q", "--force", "--detach", parent, at=self.work)
        self._count += 1  # two commits of the same second must differ
        for path, text in changed.items():
            (self.work / path).write_text(text)
        run_git("add", "-A", at=self.work)
        more = [word for one in parents for word in ("-p", one)]
        tree = run_git("write-tree", at=self.work)
        made = run_git("commit-tree", tree, "-p", parent, *more, "-m", f"Commit {self._count}", at=self.work)
        run_git("reset", "-q", "--hard", made, at=self.work)
        return made

    async def seen(self, commit: str) -> tuple[str, ...] | None:
        """Propose a commit, and return the files that it is seen to change."""
        run_git("push", "-q", "-f", "origin", f"{commit}:refs/for/master/one", at=self.work)
        mirror = self.engine.mirror(PROJECT, "local")
        assert not await mirror.bring({"refs/heads/master": self.head, "refs/for/master/one": commit})
        return (await files(mirror, self.head, [commit]))[commit]

    async def merged(self, commit: str, mode: str) -> MergeAnswer:
        item = MergeItem("i", PROJECT, "local", "master", "refs/for/master/one", commit, mode, at_s=1, message="one")
        answer = await self.engine.do(MergeRequest("b", (item,), {PROJECT: "local"}))
        assert isinstance(answer, MergeAnswer)
        return answer


@pytest.mark.parametrize("first", ["other", "fix"])
async def test_a_merge_that_reverts_landed_files_counts_as_changing_them(tmp_path: Path, first: str) -> None:
    """It merges the same two commits as the branch, and keeps the files of one of them. Jobs with file matchers run,
    and the configuration that it brings back is checked."""
    branch = Branch(tmp_path)
    one, two = (branch.other, branch.fix) if first == "other" else (branch.fix, branch.other)
    change = branch.commit(one, {**BEFORE, "other": "x\n", "README": "innocent\n"}, two)
    assert {"README", "zuul.yaml"} <= set(await branch.seen(change) or ())
    assert (await branch.merged(change, "merge")).ok
    review = await branch.engine.do(ReviewRequest(PROJECT, "local", "master", "refs/for/master/one", change))
    assert isinstance(review, ReviewAnswer) and {"README", "zuul.yaml"} <= {file.path for file in review.files}


@pytest.mark.parametrize("mode", ["cherry-pick", "rebase"])
async def test_picks_that_revert_landed_files_are_refused(tmp_path: Path, mode: str) -> None:
    """The first commit makes the same change as the branch, and the second one takes it back: the first has no effect
    any more."""
    branch = Branch(tmp_path)
    change = branch.commit(branch.commit(branch.begin, AFTER), {**BEFORE, "README": "innocent\n"})
    assert await branch.seen(change) == ("README",)
    answer = await branch.merged(change, mode)
    assert not answer.ok and answer.blame == "i" and "change and restore" in answer.error
    assert ": zuul.yaml; squash them" in answer.error
    squashed = branch.commit(branch.begin, {"README": "innocent\n"})
    assert await branch.seen(squashed) == ("README",)
    assert (await branch.merged(squashed, mode)).ok
