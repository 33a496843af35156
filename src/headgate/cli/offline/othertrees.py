"""Read configuration that is not the current one: of work trees, an earlier revision, another directory."""

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
from headgate.config.operator.model import included
from headgate.config.tenants import ConfigErrors, TenantProject

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
            # A project that is not below the root is simply not compared.
            continue
    return found


def earlier(loaded: LoadedTenant, since: str, at: Trees) -> LoadedTenant:
    """Return the tenant as it was at the revision `since`, or as it is in that directory. Raise UserError."""
    directory = Path(since)
    found = dict(_directory(loaded, directory) if directory.is_dir() else _revision(loaded, since, at))
    if not found:
        what = "has no repository of a project" if directory.is_dir() else "is a revision of no repository"
        raise UserError(f"--new-since {since}: this {what} of tenant {loaded.tenant.name}")
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
    """Return the checked-out branch if it is read, otherwise the default branch of the project."""
    return current if current in loaded.branches.get(source.project, {}) else default_branch(loaded, source)


class ProjectWorkTree(NamedTuple):
    """Represent a work tree that stands for its project on one branch."""

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
        # A branch that nobody configured is tried as a change to the default one.
        read_branch = current.strip() if current.strip() in known else default_branch(loaded, source)
        found.append(ProjectWorkTree(source, path, branch or read_branch, await head(path)))
    return found


async def _top(path: Path) -> Path:
    """Find the top of the work tree. Raise UserError."""
    try:
        _, top = await git("rev-parse", "--show-toplevel", at=path)
    except (GitError, OSError) as error:
        raise UserError(f"{path.absolute()} is no work tree of git; say which with --tree DIR") from error
    return Path(top.strip())


async def _of(path: Path, loaded: LoadedTenant, at: Mapping[str, GitConnection]) -> TenantProject:
    """Find the project that one of the work tree's remotes names. Raise UserError, GitError."""
    # git ends with status 1 if there is no remote.
    _, lines = await git("config", "--get-regexp", r"^remote\..*\.url$", at=path, ok=(0, 1))
    urls = {comparable(line.partition(" ")[2], at=path) for line in lines.splitlines()}
    for source in loaded.tenant.projects:
        if source.connection in at and comparable(at[source.connection].url(source.project)) in urls:
            return source
    names = ", ".join(source.name for source in loaded.tenant.projects)
    raise UserError(
        f"{path}: none of its remotes is a repository of tenant {loaded.tenant.name}; say whose it is with "
        f"--tree PROJECT={path}, one of {names}"
    )


def laid_over(loaded: LoadedTenant, found: Sequence[ProjectWorkTree]) -> LoadedTenant:
    """Return the tenant with the configuration of the work trees in place of its own. Raise ConfigErrors for what
    that breaks."""
    files = {
        tree.source.project: {tree.branch: on_disk(tree.path, tree.source.config_paths)}
        for tree in found
        if tree.source.loads
    }
    if not files:
        return loaded
    fresh = loaded.with_files(files)
    # Only what the work trees break counts: errors that are there already concern somebody else.
    broken = tuple(e for e in describe.new_errors(loaded.errors, fresh.errors) if e.severity == "error")
    if broken:
        raise ConfigErrors(broken)
    return fresh
