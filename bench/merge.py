"""Measure twenty speculative merges: in a bare repository, and as `git merge` in a work tree."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.remote import Remote
from headgate.gate.state.gitwork import MergeItem
from headgate.testing.repositories import Repositories, run_git

MERGES, FILES_EACH = 20, 3
HERE = Path(__file__).parent.parent
"""The measured repository: this project's own, which must be a clone."""


def _repository(root: Path) -> tuple[Repositories, list[str]]:
    """Return a clone with all its history, and MERGES changes of FILES_EACH files each, proposed on the same head."""
    repositories = Repositories(root)
    bare, work = repositories.hub / "own", repositories.work("own")
    # --no-local: objects are packed as by a fetch from a server, not linked.
    run_git("clone", "-q", "--bare", "--no-local", str(HERE), str(bare), at=root)
    # The clone may be of any branch, or of a commit that is checked out.
    run_git("update-ref", "refs/heads/master", "HEAD", at=bare)
    run_git("clone", "-q", "-b", "master", str(bare), str(work), at=root)
    modules = [path for path in run_git("ls-files", at=work).splitlines() if path.endswith(".py")]
    step, commits = len(modules) // (MERGES * FILES_EACH), []
    for n in range(MERGES):
        # Each change has files of its own, so the merges never conflict.
        mine = modules[n * step :: MERGES * step][:FILES_EACH]
        changed = {path: (work / path).read_text() + f"# change {n}\n" for path in mine}
        commits.append(repositories.propose("own", f"t{n}", changed))
    return repositories, commits


async def measure() -> dict[str, float]:
    """Return the seconds for the whole chain, each way; both ways end with the same tree."""
    with tempfile.TemporaryDirectory() as name:
        repositories, commits = _repository(Path(name))
        mirror = MirrorRepository(Path(name) / "mirror.git", Remote(str(repositories.hub / "own")))
        refs = await mirror.remote.refs()
        # Fetching is not measured.
        await mirror.bring(refs)
        head = refs["refs/heads/master"]
        begin = time.perf_counter()
        for n, commit in enumerate(commits):
            item = MergeItem(f"i{n}", "own", "local", "master", f"refs/for/master/t{n}", commit, at_s=n)
            head = await mirror.merge(head, item)
        headgate_s = time.perf_counter() - begin
        # The same commits in a work tree, which has already been checked out.
        work = repositories.work("own")
        run_git("checkout", "-q", "-B", "chain", "origin/master", at=work)
        begin = time.perf_counter()
        for commit in commits:
            run_git("merge", "-q", "--no-ff", "-m", "m", commit, at=work)
        work_tree_s = time.perf_counter() - begin
        same = run_git("rev-parse", "HEAD^{tree}", at=work) == str(mirror.tree(head).id)
        assert same, "the two ways must give the same tree"
        return {"merges": MERGES, "headgate_s": headgate_s, "work_tree_s": work_tree_s}
