"""Let people act on a change that is proposed: approve it, or have it tested again."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.cli.identity.byhand import ManualAction, noted
from headgate.cli.identity.pages import pages
from headgate.cli.process import connections, tenants
from headgate.cli.propose import WorkTree
from headgate.cli.settings import find, read
from headgate.cli.terminal.say import say

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
_project = click.option("--project", default="", help="By default the project of --remote in the current work tree.")
_remote = click.option("--remote", default="origin", show_default=True, help="The remote that Headgate watches.")
_branch = click.option("--branch", default="", help="By default the repository's default branch.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")


class ProposalRepository(NamedTuple):
    """Name the repository to which a change is proposed."""

    url: str
    project: str
    """Name of the project; empty: no settings here name a project with this address."""

    @property
    def name(self) -> str:
        """Return the name that messages use for it."""
        return self.project or self.url


@click.command()
@_config
@_url
@_project
@_remote
@_reason
@_branch
@click.option(
    "--as", "who", default="", help="Approve under this name, which must be yours: push to refs/approvals/NAME/…."
)
@click.argument("topic")
def approve(
    config: str | None, url: str | None, project: str, remote: str, reason: str, branch: str, who: str, topic: str
) -> None:
    """Approve the change TOPIC: push its commit to refs/approved/<branch>/<topic>.

    If several people must approve, add --as NAME to push to refs/approvals/<name>/<branch>/<topic>.

    A change that is approved already is tested again, as by `headgate recheck`.  A running Headgate that knows your
    token records who did it and why."""
    at = _repository(config, project, remote)
    branch = asyncio.run(WorkTree(at.url).branch(branch))
    commit, again = asyncio.run(_push(at.url, branch, topic, f"approvals/{who}" if who else "approved"))
    if again:
        asyncio.run(_push(at.url, branch, topic, "recheck"))
        say(f"{topic} of {at.name} was approved already, and is tested again: {commit}")
    else:
        say(f"Approved {topic} of {at.name}: {commit}")
    missed = "no settings here name a project of this repository; say --project, or --config"
    if at.project:
        missed = _note_approval(config, url, at.project, f"{branch}/{topic}", commit, reason)
    if missed:
        say(f"This action is not recorded: {missed}", err=True)


def _note_approval(config: str | None, url: str | None, project: str, change: str, commit: str, reason: str) -> str:
    """Record the approval at a running Headgate. Return why it could not be recorded; empty: it was."""
    body = {"project": project, "change": change, "commit": commit, "reason": reason}
    try:
        at = pages(config, url)
        at.post(f"{at.of(_having(config, project)[0])}/approval", body)
    except UserError as why:
        # No Headgate answers, or there are no pages: with a store that can be opened here, the action is recorded
        # anyway.
        try:
            asyncio.run(noted(read(find(config)), ManualAction("approve", f"{change} of {project}", reason, project)))
        except UserError:
            return str(why)
    return ""


@click.command()
@_config
@_project
@_remote
@_branch
@click.argument("topic")
def recheck(config: str | None, project: str, remote: str, branch: str, topic: str) -> None:
    """Have the change TOPIC tested again: push its commit to refs/recheck/<branch>/<topic>.

    Headgate removes that ref once the change has entered its pipelines.  If the change is being tested already,
    nothing happens."""
    at = _repository(config, project, remote)
    branch = asyncio.run(WorkTree(at.url).branch(branch))
    commit, _ = asyncio.run(_push(at.url, branch, topic, "recheck"))
    say(f"{topic} of {at.name} is tested again: {commit}")


def _repository(config: str | None, project: str, remote: str) -> ProposalRepository:
    """Find the named project in the settings; otherwise use the remote of the work tree. Raise UserError."""
    if project:
        return ProposalRepository(_having(config, project)[1], project)
    try:
        url = asyncio.run(_url_of(WorkTree(remote), remote))
    except UserError as none:
        raise UserError(
            f"{Path.cwd()} is no work tree with a remote {remote!r}; say --project, or go to a work tree of it"
        ) from none
    return ProposalRepository(url, _project_of(config, url))


async def _url_of(tree: WorkTree, remote: str) -> str:
    """Return the address of a remote, absolute so that it is valid from any directory. Raise UserError."""
    url = await tree.says("remote", "get-url", "--", remote)
    if ":" in url.partition("/")[0] or url.startswith("/"):
        return url
    return str((Path(await tree.says("rev-parse", "--show-toplevel")) / url).resolve())


def _project_of(config: str | None, url: str) -> str:
    """Return the tenant file's name for the project with this address; empty where no settings name one."""
    try:
        settings = read(find(config))
        at = connections(settings)
        every = tenants(settings, at)[1].tenants.values()
    except UserError:
        if config is not None:
            raise
        return ""
    known = {_plain(at[p.connection].url(p.project)): p.name for one in every for p in one.projects}
    return known.get(_plain(url), "")


def _plain(url: str) -> str:
    """Return the address in a form that can be compared with another one."""
    path = Path(url.removeprefix("file://"))
    bare = str(path.resolve()) if path.is_absolute() else url.rstrip("/")
    return bare.removesuffix("/.git").removesuffix(".git")


def _having(config: str | None, project: str) -> tuple[str, str]:
    """Find the first tenant that has the project, and the URL of its repository. Raise UserError."""
    settings = read(find(config))
    at = connections(settings)
    for name, tenant in tenants(settings, at)[1].tenants.items():
        if (source := tenant.find(project)) is not None:
            return name, at[source.connection].url(source.project)
    raise UserError(f"no tenant has the project {project!r}")


async def _push(url: str, branch: str, topic: str, kind: str) -> tuple[str, bool]:
    """Push the ref of this kind; return the proposed commit, and whether the ref named it already."""
    proposed, ref = f"refs/for/{branch}/{topic}", f"refs/{kind}/{branch}/{topic}"
    # An empty repository makes this independent of the work tree and of what has been fetched there.
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name)
        try:
            await git("init", "-q", "--bare", name)
            await git("fetch", "-q", "--", url, f"+{proposed}:{proposed}", at=repository, remote=True)
            commit = (await git("rev-parse", proposed, at=repository))[1].strip()
            _, output = await git("ls-remote", "--", url, ref, at=repository, remote=True)
            # Pushing the same commit again changes nothing on the server, so that no event would come of it.
            if again := output.split("\t")[0] == commit:
                return commit, again
            # An approval of an earlier patchset may be there, and the new commit is usually no descendant of it.
            await git("push", "-q", "-f", "--", url, f"{proposed}:{ref}", at=repository, remote=True)
        except GitError as error:
            raise UserError(f"{url} {proposed}: {error}") from error
    return commit, again
