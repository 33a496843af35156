"""Read configuration files from directories: work trees, bare repositories, or plain directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pygit2

from headgate.adapters.git.objects import texts
from headgate.base.errors import HeadgateError

Files = dict[str, dict[str, str]]
"""branch -> path -> text; the default branch first, then the others by name"""
_REMOTE = "refs/remotes/origin/"


class UnreadableRepository(HeadgateError):
    """Report that a repository does not exist or cannot be read."""


def place_of(root: Path, connection: str, hostname: str, project: str) -> Path:
    """Return the directory of the project with this short name below `root`. Raise UnreadableRepository."""
    # Look below the connection's directory first: a project name alone may be ambiguous.
    names = [f"{above}{project}{end}" for above in (f"{connection}/", f"{hostname}/", "") for end in ("", ".git")]
    found = next((place for name in names if (place := root / name).is_dir()), None)
    if found is None:
        raise UnreadableRepository(
            f"no repository of {project} below {root}: neither {connection}/{project} nor {project} exists"
        )
    return found


def read(place: Path, paths: tuple[str, ...], branch: str = "") -> Files:
    """Return the files named by `paths` (directories end in a slash) of every branch, or only of `branch`.

    For the checked-out branch of a work tree, read the files on disk; for others, the commits. Branches of the remote
    `origin` count, too; its default branch comes first, or else the checked-out branch. A plain directory counts as
    one branch: `branch` or master. Raise UnreadableRepository.
    """
    try:
        if not is_repository(place):
            return {branch or "master": on_disk(place, paths)}
        return _repository(place, paths, branch)
    except (pygit2.GitError, OSError, KeyError, ValueError) as error:
        raise UnreadableRepository(f"{place} cannot be read: {error}") from error


def is_repository(place: Path) -> bool:
    return (place / ".git").exists() or ((place / "HEAD").is_file() and (place / "objects").is_dir())


def _repository(place: Path, paths: tuple[str, ...], only: str) -> Files:
    repository = pygit2.Repository(str(place))
    # The remote's HEAD is a name for another branch, not a branch.
    refs = [ref for ref in repository.references if ref != f"{_REMOTE}HEAD"]
    first = _target(repository, f"{_REMOTE}HEAD").removeprefix(_REMOTE)
    commits: dict[str, str] = {}
    for start in (_REMOTE, "refs/heads/"):
        # Local branches come last and override remote ones, because the user works on them.
        commits |= {ref.removeprefix(start): ref for ref in refs if ref.startswith(start)}
    current = _target(repository, "HEAD").removeprefix("refs/heads/")
    # A clone with --no-checkout has a branch but no files: reading the disk would find an empty configuration.
    edited = current if not repository.is_bare and any(entry.name != ".git" for entry in place.iterdir()) else ""
    # Sort the default branch first: other code uses the first branch as the default.
    names = sorted({*commits, *([edited] if edited else [])}, key=lambda name: (name != first, name != current, name))
    if not names and not repository.is_bare:
        return {only or "master": on_disk(place, paths)}  # a detached HEAD in a repository without branches
    found: Files = {}
    for name in names:
        if only and name != only:
            continue
        if name == edited:
            found[name] = on_disk(place, paths)
        else:
            found[name] = texts(repository, repository.references[commits[name]].peel(pygit2.Tree), paths)
    return found


def _target(repository: pygit2.Repository, name: str) -> str:
    """Return the target of a symbolic reference, or an empty string if it is missing or not symbolic."""
    try:
        found = repository.lookup_reference(name).target
    except KeyError:
        return ""
    return found if isinstance(found, str) else ""


def on_disk(root: Path, paths: tuple[str, ...]) -> dict[str, str]:
    return {name: text for path in paths for name, text in _files(root, path)}


def _files(root: Path, path: str) -> Iterator[tuple[str, str]]:
    place = root / path
    if place.is_file():
        yield path, place.read_text(errors="replace")
    elif place.is_dir():
        # Sort: the order of stanzas matters, and the order of a directory listing is arbitrary.
        for file in sorted(place.rglob("*")):
            if file.is_file() and (file.suffix == ".yaml" or file.name == ".zuul.ignore"):
                yield str(file.relative_to(root)), file.read_text(errors="replace")


def at_revision(place: Path, paths: tuple[str, ...], revision: str) -> tuple[str, dict[str, str]] | None:
    """Return the checked-out branch, and the files named by `paths` at the revision. Return None if the directory is
    not a repository or lacks the revision. Raise UnreadableRepository."""
    if not is_repository(place):
        return None
    try:
        repository = pygit2.Repository(str(place))
        try:
            tree = repository.revparse_single(revision).peel(pygit2.Tree)
        except (KeyError, ValueError, pygit2.GitError):
            # The user may give any text as a revision, so an unknown or ambiguous one is not a repository error.
            return None
        return _target(repository, "HEAD").removeprefix("refs/heads/"), texts(repository, tree, paths)
    except (pygit2.GitError, OSError, KeyError) as error:
        raise UnreadableRepository(f"{place} cannot be read: {error}") from error


def checked_out(place: Path) -> str:
    """Return the checked-out branch, or an empty string for a detached HEAD or a directory that is no repository."""
    try:
        return (
            _target(pygit2.Repository(str(place)), "HEAD").removeprefix("refs/heads/") if is_repository(place) else ""
        )
    except pygit2.GitError:
        return ""
