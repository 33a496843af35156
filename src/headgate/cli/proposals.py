"""Implement commands about a proposed change: propose, withdraw, approve and recheck."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.connection import comparable
from headgate.base.errors import NoSettings, UserError
from headgate.cli.identity.byhand import ManualAction, noted
from headgate.cli.identity.pages import pages
from headgate.cli.resources import connections, tenants
from headgate.cli.settings import find, read
from headgate.cli.terminal.say import say

TOPIC_MAX_CHARS = 60
"""Length limit of a topic that is derived from the commit's subject."""

ORIGIN = "origin"
_remote = click.option("--remote", default=ORIGIN, show_default=True, help="The remote that Headgate watches.")
_branch = click.option("--branch", default="", help="The target branch. Default: the remote's default branch.")
_force = click.option("--force", is_flag=True, help="Overwrite or withdraw somebody else's proposal.")
_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
_project = click.option(
    "--project", default="", help="The project. Default: the project of --remote in the current work tree."
)
_repository_branch = click.option(
    "--branch", default="", help="The target branch. Default: the repository's default branch."
)
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")
_topic = click.argument("topic", default="")


class There(NamedTuple):
    """Describe what is already proposed under the ref."""

    commit: str
    owner: str
    """Name and address of the author."""


class WorkTree:
    """Work in the repository around the current directory, with one of its remotes. The methods raise UserError."""

    def __init__(self, remote: str) -> None:
        self.remote, self._at = remote, Path.cwd()

    def command(self, name: str, topic: str, branch: str) -> str:
        """Return the command of Headgate that does `name` with a change in this repository; `branch` is the option
        that the user gave, or empty."""
        options = ["--remote", self.remote] if self.remote != ORIGIN else []
        options += ["--branch", branch] if branch else []
        return shlex.join(["headgate", name, *options, topic])

    def push_command(self, commit: str, ref: str) -> str:
        """Return the git command that pushes a commit to a ref of the remote."""
        return shlex.join(["git", "push", self.remote, f"{commit[:8]}:{ref}"])

    async def says(self, *args: str, remote: bool = False) -> str:
        """Run git and return its output."""
        try:
            return (await git(*args, at=self._at, remote=remote))[1].strip()
        except GitError as error:
            raise UserError(f"git {args[0]}: {error}") from error

    async def refs(self, *names: str) -> dict[str, str]:
        """Return the commits of refs at the remote."""
        # After `--`, git cannot take a remote whose name begins with a dash as an option.
        out = await self.says("ls-remote", "--", self.remote, *names, remote=True)
        return {name: commit for commit, name in (line.split("\t") for line in out.splitlines() if "\t" in line)}

    async def branch(self, given: str) -> str:
        """Return the given branch, or otherwise the default branch of the remote."""
        head = await self.says("ls-remote", "--symref", "--", self.remote, "HEAD", remote=True)
        named = re.match(r"ref: refs/heads/(\S+)\tHEAD$", head, re.MULTILINE)
        branch = given or (named[1] if named else "")
        if branch and f"refs/heads/{branch}" in await self.refs(f"refs/heads/{branch}"):
            return branch
        if not await self.refs("refs/heads/*"):
            first = shlex.join(["git", "push", self.remote, f"HEAD:refs/heads/{branch}" if branch else "HEAD"])
            raise UserError(f"{self.remote} has no branches yet; push the first commit without Headgate: {first}")
        if not branch:
            raise UserError(f"{self.remote} has no default branch; name one with --branch")
        raise UserError(f"{self.remote} has no branch {branch!r}")

    async def topic(self, given: str, branch: str) -> str:
        """Return the given topic, or otherwise the name of the current branch, or words of the subject."""
        current = "" if given else await self.says("rev-parse", "--abbrev-ref", "HEAD")
        if given or current not in ("HEAD", branch):
            return given or current
        subject = await self.says("log", "-1", "--format=%s")
        topic = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:TOPIC_MAX_CHARS].rstrip("-")
        if not topic:
            raise UserError("the commit's subject contains no usable words; give the TOPIC")
        return topic

    async def there(self, ref: str) -> There | None:
        """Return the proposal that the ref currently names."""
        commit = (await self.refs(ref)).get(ref)
        if commit is None:
            return None
        await self.says("fetch", "-q", "--no-tags", "--", self.remote, ref, remote=True)
        return There(commit, await self.says("log", "-1", "--format=%an <%ae>", commit))

    async def is_mine(self, there: There) -> bool:
        """Return whether the local committer wrote the proposal."""
        known = await self.says(
            "config", "--get", "--default", "", "user.email", remote=True
        )  # `remote` makes git read the user's own settings
        # The environment overrides the settings, as in git.
        mine = os.environ.get("GIT_AUTHOR_EMAIL") or known
        return bool(mine) and there.owner.casefold().endswith(f"<{mine.casefold()}>")

    async def push(self, *steps: tuple[str, str, str]) -> None:
        """Push steps (ref, expected commit, new commit): all or none. An empty new commit deletes the ref."""
        # An empty expected commit means that the ref must not exist. If somebody else pushed in the meantime, the push
        # fails instead of overwriting their work.
        leases = [f"--force-with-lease={ref}:{seen}" for ref, seen, _ in steps]
        specs = [f"{to}:{ref}" for ref, _, to in steps]
        # Only several refs need an atomic push, which some servers cannot do.
        await self.says(
            "push", "-q", *(["--atomic"] if len(steps) > 1 else []), *leases, "--", self.remote, *specs, remote=True
        )


@click.command()
@_remote
@_branch
@_force
@_topic
def propose(remote: str, branch: str, force: bool, topic: str) -> None:
    """Propose the commit that is checked out, as the change TOPIC: push it to refs/for/<branch>/<topic>.

    Proposing TOPIC again creates a new patchset. Without --force, somebody else's change is not overwritten.
    Without TOPIC, the topic is the name of your branch, or is derived from the commit's subject."""
    asyncio.run(_propose(WorkTree(remote), branch, topic, force=force))


async def _propose(tree: WorkTree, branch: str, topic: str, *, force: bool) -> None:
    commit = await tree.says("rev-parse", "HEAD")
    named, branch = branch, await tree.branch(branch)
    topic = await tree.topic(topic, branch)
    ref, head = f"refs/for/{branch}/{topic}", (await tree.refs(f"refs/heads/{branch}"))[f"refs/heads/{branch}"]
    proposal = await tree.there(ref)
    if proposal is not None and proposal.commit == commit:
        say(f"{topic} is already proposed: {commit[:8]}. To test it again: {tree.command('recheck', topic, named)}")
        return
    if proposal is not None and not force and not await tree.is_mine(proposal):
        raise UserError(
            f"{topic} is proposed by {proposal.owner} ({proposal.commit[:8]}); choose another topic, or add --force"
        )
    if commit == head:
        raise UserError(f"{commit[:8]} is already the head of {branch}; commit your change first")
    await tree.push((ref, proposal.commit if proposal is not None else "", commit))
    subject = "a new patchset of" if proposal is not None else "the change"
    say(f"Proposed {subject} {topic} for {branch}: {commit[:8]} {await tree.says('log', '-1', '--format=%s')}")
    say("Next, its jobs run. Their results appear in a git note:")
    say(f"  git fetch {shlex.quote(tree.remote)} refs/notes/headgate:refs/notes/headgate && git log --notes=headgate")
    say("It lands once it is approved:")
    say(f"  {tree.push_command(commit, f'refs/approved/{branch}/{topic}')}")
    say(f"To withdraw it: {tree.command('withdraw', topic, named)}")


@click.command()
@_remote
@_branch
@_force
@_topic
def withdraw(remote: str, branch: str, force: bool, topic: str) -> None:
    """Withdraw the change TOPIC: delete refs/for/<branch>/<topic>, and its approval.

    The change leaves every queue. Its commits stay in your own repository."""
    asyncio.run(_withdraw(WorkTree(remote), branch, topic, force=force))


async def _withdraw(tree: WorkTree, branch: str, topic: str, *, force: bool) -> None:
    branch = await tree.branch(branch)
    topic = await tree.topic(topic, branch)
    ref, approved = f"refs/for/{branch}/{topic}", f"refs/approved/{branch}/{topic}"
    proposal = await tree.there(ref)
    if proposal is None:
        raise _missing(branch, topic)
    if not force and not await tree.is_mine(proposal):
        raise UserError(
            f"{topic} is proposed by {proposal.owner} ({proposal.commit[:8]}); to withdraw it anyway, add --force"
        )
    steps = [(ref, proposal.commit, "")]
    # Delete the approval in the same push: otherwise it would approve the commit if it were proposed again.
    steps += [(approved, seen, "") for seen in [(await tree.refs(approved)).get(approved)] if seen]
    await tree.push(*steps)
    say(f"Withdrew {topic} from {branch}: {proposal.commit[:8]}. It leaves every queue. To propose it again:")
    say(f"  {tree.push_command(proposal.commit, ref)}")


class ProposalRepository(NamedTuple):
    """Name the repository to which a change is proposed."""

    url: str
    project: str
    """Name of the project; empty if the settings name no project with this URL."""

    @property
    def name(self) -> str:
        """Return the name for messages: the project, or else the URL."""
        return self.project or self.url


@click.command()
@_config
@_url
@_project
@_remote
@_reason
@_repository_branch
@click.option(
    "--as", "who", default="", help="Approve under your own name: push to refs/approvals/<name>/<branch>/<topic>."
)
@click.argument("topic")
def approve(
    config: str | None, url: str | None, project: str, remote: str, reason: str, branch: str, who: str, topic: str
) -> None:
    """Approve the change TOPIC: push its commit to refs/approved/<branch>/<topic>.

    If several people must approve, add --as NAME to push to refs/approvals/<name>/<branch>/<topic>.

    If the change is already approved, Headgate tests it again, as with `headgate recheck`. A running Headgate that
    accepts your token records who approved and why."""
    at = _repository(config, project, remote)
    branch = asyncio.run(WorkTree(at.url).branch(branch))
    commit, again = asyncio.run(_push(at.url, branch, topic, f"approvals/{who}" if who else "approved"))
    if again:
        asyncio.run(_push(at.url, branch, topic, "recheck"))
        say(f"{topic} of {at.name} was already approved; Headgate tests it again: {commit}")
    else:
        say(f"Approved {topic} of {at.name}: {commit}")
    if at.project:
        missed = _note_approval(config, url, at.project, f"{branch}/{topic}", commit, reason)
    else:
        # Many people work where no settings are; they do not expect their approval to be recorded as an action.
        expected = reason or url or _has_settings(config)
        missed = "the settings name no project with this repository; add --project or --config" if expected else ""
    if missed:
        say(f"Headgate did not record who approved: {missed}", err=True)


def _note_approval(config: str | None, url: str | None, project: str, change: str, commit: str, reason: str) -> str:
    """Record the approval at a running Headgate. Return why that failed, or an empty string."""
    body = {"project": project, "change": change, "commit": commit, "reason": reason}
    try:
        at = pages(config, url)
        at.post(f"{at.of(_having(config, project)[0])}/approval", body)
    except UserError as why:
        # No pages, or no Headgate answers: record the action directly in the store, if this machine can open it.
        try:
            asyncio.run(noted(read(find(config)), ManualAction("approve", f"{change} of {project}", reason, project)))
        except UserError:
            return str(why)
    return ""


@click.command()
@_config
@_project
@_remote
@_repository_branch
@_topic
def recheck(config: str | None, project: str, remote: str, branch: str, topic: str) -> None:
    """Test the change TOPIC again: push its commit to refs/recheck/<branch>/<topic>.

    Headgate deletes that ref once the change has entered its pipelines. If the change is already being tested,
    nothing happens. Without TOPIC, it is found as by `headgate propose`."""
    if project and not topic:
        raise UserError("with --project, the work tree does not tell the topic; give the TOPIC")
    at = _repository(config, project, remote)
    branch = asyncio.run(WorkTree(at.url).branch(branch))
    topic = asyncio.run(WorkTree(remote).topic(topic, branch))
    commit, _ = asyncio.run(_push(at.url, branch, topic, "recheck"))
    say(f"Requested new tests of {topic} of {at.name}: {commit}")


def _repository(config: str | None, project: str, remote: str) -> ProposalRepository:
    """Find the named project in the settings; otherwise use the remote of the work tree. Raise UserError."""
    if project:
        return ProposalRepository(_having(config, project)[1], project)
    try:
        url = asyncio.run(_url_of(WorkTree(remote), remote))
    except UserError as none:
        raise UserError(
            f"{Path.cwd()} is not a work tree with a remote {remote!r}; add --project, or change to a work tree of the "
            "repository"
        ) from none
    return ProposalRepository(url, _project_of(config, url))


async def _url_of(tree: WorkTree, remote: str) -> str:
    """Return the URL of a remote, with a relative path made absolute. Raise UserError."""
    url = await tree.says("remote", "get-url", "--", remote)
    if ":" in url.partition("/")[0] or url.startswith("/"):
        return url
    return str((Path(await tree.says("rev-parse", "--show-toplevel")) / url).resolve())


def _project_of(config: str | None, url: str) -> str:
    """Return the tenant file's name for the project with this URL, or an empty string if there is none."""
    try:
        settings = read(find(config))
        at = connections(settings)
        every = tenants(settings, at)[1].tenants.values()
    except UserError:
        if config is not None:
            raise
        return ""
    known = {comparable(at[p.connection].url(p.project)): p.name for one in every for p in one.projects}
    return known.get(comparable(url), "")


def _has_settings(config: str | None) -> bool:
    try:
        return bool(find(config))
    except NoSettings:
        return False


def _having(config: str | None, project: str) -> tuple[str, str]:
    """Find the first tenant that has the project, and the URL of its repository. Raise UserError."""
    settings = read(find(config))
    at = connections(settings)
    for name, tenant in tenants(settings, at)[1].tenants.items():
        if (source := tenant.find(project)) is not None:
            return name, at[source.connection].url(source.project)
    raise UserError(f"no tenant has the project {project!r}")


def _missing(branch: str, topic: str) -> UserError:
    return UserError(f"there is no proposal {topic} for {branch}; it may already have landed")


async def _push(url: str, branch: str, topic: str, kind: str) -> tuple[str, bool]:
    """Push the ref of this kind; return the proposed commit, and whether the ref already pointed to it."""
    proposed, ref = f"refs/for/{branch}/{topic}", f"refs/{kind}/{branch}/{topic}"
    # Use an empty temporary repository, to be independent of the work tree and of what it has fetched.
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name)
        try:
            await git("init", "-q", "--bare", name)
            # One commit is enough to push its name, and a shallow repository on a server sends no more.
            await git("fetch", "-q", "--depth", "1", "--", url, f"+{proposed}:{proposed}", at=repository, remote=True)
            commit = (await git("rev-parse", proposed, at=repository))[1].strip()
            _, output = await git("ls-remote", "--", url, ref, at=repository, remote=True)
            # A push of the same commit changes nothing on the server, so it would cause no event.
            if again := output.split("\t")[0] == commit:
                return commit, again
            # Force: the ref may hold an earlier patchset, which is usually no ancestor of the new commit.
            await git("push", "-q", "-f", "--", url, f"{proposed}:{ref}", at=repository, remote=True)
        except GitError as error:
            if "couldn't find remote ref" in str(error):
                raise _missing(branch, topic) from error
            raise UserError(f"{url} {proposed}: {error}") from error
    return commit, again
