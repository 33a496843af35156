"""Read configuration other than the landed one: from work trees, an earlier revision, or another directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.connection import GitConnection, comparable
from headgate.adapters.git.directories import head
from headgate.base.errors import UserError
from headgate.cli.offline.graphs import default_branch
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.repositories import Files, UnreadableRepository, at_revision, on_disk, place_of, read
from headgate.config.explain import describe
from headgate.config.operator.model import ConfigErrors, TenantProject, included

Trees = Mapping[str, Path]
"""Canonical name -> the project's repository on this machine."""


def trees_below(loaded: LoadedTenant, root: Path) -> dict[str, Path]:
    """Find the repositories of projects below `root`."""
    found: dict[str, Path] = {}
    for source in loaded.tenant.projects:
        try:
            host = source.project.removesuffix(f"/{source.name}")
            found[source.project] = place_of(root, source.connection, host, source.name)
        except UnreadableRepository:
            # The caller does not compare projects without a repository below the root.
            continue
    return found


def earlier(loaded: LoadedTenant, since: str, at: Trees) -> LoadedTenant:
    """Return the tenant at the revision `since`, or with the repositories in that directory. Raise UserError."""
    directory = Path(since)
    found = dict(_directory(loaded, directory) if directory.is_dir() else _revision(loaded, since, at))
    if not found:
        what = (
            "this directory contains no project"
            if directory.is_dir()
            else "no repository has this revision, for any project"
        )
        raise UserError(f"--new-since {since}: {what} of tenant {loaded.tenant.name}")
    return loaded.with_files(found)


def _directory(loaded: LoadedTenant, root: Path) -> Iterator[tuple[str, Files]]:
    """Yield each project in the directory with its files by branch. Raise UserError."""
    for project, place in trees_below(loaded, root).items():
        source = loaded.tenant.by_canonical[project]
        # A config-project is read on one branch only.
        only = source.load_branch if source.trusted else ""
        try:
            files = read(place, source.config_paths, only)
        except UnreadableRepository as error:
            raise UserError(str(error)) from error
        known = loaded.branches.get(project, {})
        if len(files) == 1 and not set(files) & set(known):  # a plain directory has no branches
            files = {default_branch(loaded, source): files.popitem()[1]}
        else:
            files = {**{branch: {} for branch in known}, **files}  # a missing file was created since
        yield project, {branch: found for branch, found in files.items() if included(source, branch)}


def _revision(loaded: LoadedTenant, revision: str, at: Trees) -> Iterator[tuple[str, Files]]:
    """Yield each project whose repository has the revision, and its files there. Raise UserError."""
    for project, place in at.items():
        source = loaded.tenant.by_canonical[project]
        try:
            found = at_revision(place, source.config_paths, revision)
        except UnreadableRepository as error:
            raise UserError(str(error)) from error
        if found is not None:
            yield project, {_branch(loaded, source, found[0]): found[1]}


def _branch(loaded: LoadedTenant, source: TenantProject, current: str) -> str:
    """Return the checked-out branch if its configuration is read, or else the project's default branch."""
    return current if current in loaded.branches.get(source.project, {}) else default_branch(loaded, source)


class ProjectWorkTree(NamedTuple):
    """Represent a work tree that replaces one branch of its project."""

    source: TenantProject
    path: Path
    branch: str
    commit: str


async def work_trees_of(
    given: Sequence[str], loaded: LoadedTenant, at: Mapping[str, GitConnection], branch: str | None
) -> list[ProjectWorkTree]:
    """Return the work trees; each of `given` is DIR or PROJECT=DIR. Raise UserError, GitError."""
    found = []
    for text in given:
        name, _, place = text.rpartition("=")
        path = await _top(Path(place))
        source = loaded.project(name) if name else await _of(path, loaded, at)
        _, current = await git("branch", "--show-current", at=path)
        known = loaded.branches.get(source.project, {})
        # Treat a branch without configuration, such as a topic branch, as a change to the default branch.
        read_branch = current.strip() if current.strip() in known else default_branch(loaded, source)
        found.append(ProjectWorkTree(source, path, branch or read_branch, await head(path)))
    return found


async def _top(path: Path) -> Path:
    """Find the top of the work tree. Raise UserError."""
    try:
        _, top = await git("rev-parse", "--show-toplevel", at=path)
    except (GitError, OSError) as error:
        raise UserError(f"{path.absolute()} is not a git work tree; name one with --tree DIR") from error
    return Path(top.strip())


async def _of(path: Path, loaded: LoadedTenant, at: Mapping[str, GitConnection]) -> TenantProject:
    """Find the project whose repository is one of the work tree's remotes. Raise UserError, GitError."""
    # git exits with status 1 if there is no remote.
    _, lines = await git("config", "--get-regexp", r"^remote\..*\.url$", at=path, ok=(0, 1))
    urls = {comparable(line.partition(" ")[2], at=path) for line in lines.splitlines()}
    for source in loaded.tenant.projects:
        if source.connection in at and comparable(at[source.connection].url(source.project)) in urls:
            return source
    names = ", ".join(source.name for source in loaded.tenant.projects)
    raise UserError(
        f"{path}: none of its remotes is a repository of tenant {loaded.tenant.name}; name its project with "
        f"--tree PROJECT={path}, where PROJECT is one of {names}"
    )


def laid_over(loaded: LoadedTenant, found: Sequence[ProjectWorkTree]) -> LoadedTenant:
    """Return the tenant with the configuration of the work trees instead of its own. Raise ConfigErrors for errors that
    this causes."""
    files = {
        tree.source.project: {tree.branch: on_disk(tree.path, tree.source.config_paths)}
        for tree in found
        if tree.source.loads
    }
    if not files:
        return loaded
    fresh = loaded.with_files(files)
    # Report only errors that the work trees cause, not those that already exist.
    broken = tuple(e for e in describe.new_errors(loaded.errors, fresh.errors) if e.severity == "error")
    if broken:
        raise ConfigErrors(broken)
    return fresh
