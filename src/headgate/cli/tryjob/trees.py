"""Work trees: the project of each, and the configuration in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.directories import head
from headgate.base.errors import UserError
from headgate.cli.offline.graphs import default_branch
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.repositories import on_disk
from headgate.config.explain import describe
from headgate.config.tenants import ConfigErrors, TenantProject


class ProjectWorkTree(NamedTuple):
    """Represent a work tree that stands for its project on one branch."""

    source: TenantProject
    path: Path
    branch: str
    commit: str


async def trees(
    given: Sequence[str], loaded: LoadedTenant, at: Mapping[str, GitConnection], branch: str | None
) -> list[ProjectWorkTree]:
    """Return the work trees; each of `given` is DIR or PROJECT=DIR.  Raises UserError, GitError."""
    found = []
    for text in given:
        name, _, place = text.rpartition("=")
        path = await _top(Path(place))
        source = _named(name, loaded) if name else await _of(path, loaded, at)
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


def _named(name: str, loaded: LoadedTenant) -> TenantProject:
    """Find a project of the tenant by its name. Raise UserError."""
    source = loaded.tenant.find(name)
    if source is None:
        raise UserError(f"tenant {loaded.tenant.name}: {loaded.tenant.why_not(name)}")
    return source


async def _of(path: Path, loaded: LoadedTenant, at: Mapping[str, GitConnection]) -> TenantProject:
    """Find the project that one of the work tree's remotes names. Raise UserError, GitError."""
    # git ends with status 1 if there is no remote.
    _, lines = await git("config", "--get-regexp", r"^remote\..*\.url$", at=path, ok=(0, 1))
    urls = {_plain(line.partition(" ")[2]) for line in lines.splitlines()}
    for source in loaded.tenant.projects:
        if source.connection in at and _plain(at[source.connection].url(source.project)) in urls:
            return source
    names = ", ".join(source.name for source in loaded.tenant.projects)
    raise UserError(
        f"{path}: none of its remotes is a repository of tenant {loaded.tenant.name}; say whose it is with "
        f"--tree PROJECT={path}, one of {names}"
    )


def _plain(url: str) -> str:
    path = url.removeprefix("file://")
    url = str(Path(path).resolve()) if path.startswith(("/", ".", "~")) else url
    return url.rstrip("/").removesuffix(".git")


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
