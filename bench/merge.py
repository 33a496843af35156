"""Twenty speculative merges: in a bare repository, and as `git merge` in a work tree."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from headgate.adapters.git.mirror import MirrorRepository
from headgate.gate.work import MergeItem
from headgate.testing.repositories import Repositories, run_git

FILES, MERGES = 2_500, 20


def _repository(root: Path) -> tuple[Repositories, list[str]]:
    """A tree of FILES files, and MERGES changes of three files each, proposed on the same head."""
    repositories = Repositories(root)
    files = {f"dir{n % 50}/file{n}.txt": f"line {n}\n" * 20 for n in range(FILES)}
    repositories.create("big", files)
    commits = []
    for n in range(MERGES):
        changed = {f"dir{(n + k) % 50}/file{n + k * 50}.txt": f"changed {n}\n" for k in range(3)}
        commits.append(repositories.propose("big", f"t{n}", changed))
    return repositories, commits


async def measure() -> dict[str, float]:
    """Seconds for the whole chain, each way; the trees at the end are the same."""
    with tempfile.TemporaryDirectory() as name:
        repositories, commits = _repository(Path(name))
        mirror = MirrorRepository(Path(name) / "mirror.git", str(repositories.hub / "big"))
        refs = await mirror.remote.refs()
        await mirror.bring(refs)
        head = refs["refs/heads/master"]
        begin = time.perf_counter()
        for n, commit in enumerate(commits):
            item = MergeItem(f"i{n}", "big", "local", "master", f"refs/for/master/t{n}", commit, at_s=n)
            head = await mirror.merge(head, item)
        headgate_s = time.perf_counter() - begin
        work = repositories.work("big")
        run_git("checkout", "-q", "-B", "chain", "origin/master", at=work)
        begin = time.perf_counter()
        for commit in commits:
            run_git("merge", "-q", "--no-ff", "-m", "m", commit, at=work)
        work_tree_s = time.perf_counter() - begin
        same = run_git("rev-parse", "HEAD^{tree}", at=work) == str(mirror.commit(head).tree.id)
        assert same, "the two ways must give the same tree"
        return {"merges": MERGES, "headgate_s": headgate_s, "work_tree_s": work_tree_s}
