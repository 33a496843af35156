"""Read an earlier state: a revision of the repositories, or another directory of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from headgate.base.errors import UserError
from headgate.cli.offline.graphs import default_branch
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.repositories import Files, UnreadableRepository, at_revision, place_of, read
from headgate.config.operator.model import included
from headgate.config.tenants import TenantProject

Trees = Mapping[str, Path]
"""Canonical name -> the project's repository on this machine."""


def trees(loaded: LoadedTenant, root: Path) -> dict[str, Path]:
    """Find projects below `root`."""
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
    for project, place in trees(loaded, root).items():
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
