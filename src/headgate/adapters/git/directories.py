"""Use work trees, with everything that is not committed yet, instead of repositories."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from headgate.adapters.git.command import GitError, git
from headgate.base.tasks import run_to_end
from headgate.gate.state.works import RepoState
from headgate.ports.work import CheckedOut, Checkout, CheckoutError

MESSAGE = "The files of the work tree, committed or not"


class Directories:
    """Implement `ports.work.Checkout`: `trees` supplies its projects, with one branch each, even if the landed state is
    requested; `rest` supplies the others."""

    def __init__(self, trees: Mapping[str, tuple[Path, str]], rest: Checkout) -> None:
        """Make checkouts. `trees` maps each project to its work tree and branch."""
        self._trees, self._rest = trees, rest

    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        if project in self._trees:
            return (self._trees[project][1],)
        return await self._rest.branches(state, project)

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        tree, tree_branch = self._trees.get(project, (None, ""))
        if tree is None or branch != tree_branch:
            return await self._rest.checkout(state, project, branch, dest, speculative=speculative, files=files)
        try:
            done = await _copy(tree, branch, dest)
            if not files:
                await run_to_end(asyncio.to_thread(_without_files, dest))
            return done
        except GitError as error:
            raise CheckoutError(f"{tree}: {error}") from error


async def _copy(tree: Path, branch: str, dest: Path) -> CheckedOut:
    """Copy the history of the tree, with one more commit for the differences from its head. Write nothing into `tree`.
    Raise GitError, OSError.
    """
    # `--shared` borrows the objects: the tree may have gigabytes of history, and the copy lives for one build.
    await git("clone", "-q", "--shared", "--no-checkout", str(tree), str(dest))
    await git("symbolic-ref", "HEAD", f"refs/heads/{branch}", at=dest)
    await git("update-ref", f"refs/heads/{branch}", await head(tree), at=dest)
    await git("update-ref", f"refs/remotes/origin/{branch}", await head(tree), at=dest)
    # Without the remote, builds cannot reach the user's own repository.
    await git("config", "--remove-section", "remote.origin", at=dest)
    _, listed = await git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", at=tree)
    await run_to_end(asyncio.to_thread(_files, tree, dest, [name for name in listed.split("\0") if name]))
    # `ls-files` has already applied the ignore rules; `--force` also adds files that are tracked although ignored.
    await git("add", "-A", "--force", at=dest)
    _, changed = await git("status", "--porcelain", at=dest)
    if changed:
        await git("commit", "-q", "-m", MESSAGE, at=dest)
    return CheckedOut(await head(dest), await _objects(tree))


def _without_files(dest: Path) -> None:
    """Leave only `.git`, as after `git clone --no-checkout`."""
    for place in dest.iterdir():
        if place.is_dir() and not place.is_symlink() and place.name != ".git":
            shutil.rmtree(place)
        elif place.name != ".git":
            place.unlink()
    (dest / ".git/index").unlink(missing_ok=True)


async def _objects(tree: Path) -> tuple[Path, ...]:
    """Return the object directories of a user's work tree, including those that it borrows from others. Raise
    GitError."""
    _, own = await git("rev-parse", "--path-format=absolute", "--git-path", "objects", at=tree)
    _, counted = await git("count-objects", "-v", at=tree)
    others = [line.partition(": ")[2] for line in counted.splitlines() if line.startswith("alternate: ")]
    return (Path(own.strip()), *map(Path, others))


def _files(tree: Path, dest: Path, names: Collection[str]) -> None:
    for name in names:
        source, place = tree / name, dest / name
        # The index lists files that were deleted in the work tree, and submodules, which are directories.
        if source.is_symlink() or source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)


async def head(tree: Path) -> str:
    """Return the commit that is checked out.  Raise GitError."""
    _, commit = await git("rev-parse", "--verify", "HEAD", at=tree)
    return commit.strip()
