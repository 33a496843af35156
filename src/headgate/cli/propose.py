"""Propose a change from a work tree, and withdraw it."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import NamedTuple

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.cli.terminal.say import say

TOPIC_MAX_CHARS = 60
"""Length limit of a topic that is made from the subject."""

_remote = click.option("--remote", default="origin", show_default=True, help="The remote that Headgate watches.")
_branch = click.option("--branch", default="", help="The target branch; by default the remote's default branch.")
_force = click.option("--force", is_flag=True, help="Overwrite what somebody else proposed.")
_topic = click.argument("topic", default="")


class There(NamedTuple):
    """Describe what is already proposed under the ref."""

    commit: str
    owner: str
    """Name and address of the author."""


class WorkTree:
    """Work in the repository around the current directory, with one of its remotes. The methods raise UserError."""

    def __init__(self, remote: str) -> None:
        self._remote, self._at = remote, Path.cwd()

    async def says(self, *args: str, remote: bool = False) -> str:
        """Run git and return its output."""
        try:
            return (await git(*args, at=self._at, remote=remote))[1].strip()
        except GitError as error:
            raise UserError(f"git {args[0]}: {error}") from error

    async def refs(self, *names: str) -> dict[str, str]:
        """Map refs to commits at the remote."""
        # The `--` keeps a remote whose name begins with a dash from being an option of git.
        out = await self.says("ls-remote", "--", self._remote, *names, remote=True)
        return {name: commit for commit, name in (line.split("\t") for line in out.splitlines() if "\t" in line)}

    async def branch(self, given: str) -> str:
        """Return the given branch, or otherwise the default branch of the remote."""
        head = await self.says("ls-remote", "--symref", "--", self._remote, "HEAD", remote=True)
        named = re.match(r"ref: refs/heads/(\S+)\tHEAD$", head, re.MULTILINE)
        branch = given or (named[1] if named else "")
        if not branch:
            raise UserError(f"{self._remote} has no default branch; say --branch")
        if f"refs/heads/{branch}" not in await self.refs(f"refs/heads/{branch}"):
            raise UserError(f"{self._remote} has no branch {branch!r}")
        return branch

    async def topic(self, given: str, branch: str) -> str:
        """Return the given topic, or otherwise the name of the current branch, or words of the subject."""
        current = "" if given else await self.says("rev-parse", "--abbrev-ref", "HEAD")
        if given or current not in ("HEAD", branch):
            return given or current
        subject = await self.says("log", "-1", "--format=%s")
        topic = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:TOPIC_MAX_CHARS].rstrip("-")
        if not topic:
            raise UserError("name the topic: no word of the subject can be one")
        return topic

    async def there(self, ref: str) -> There | None:
        """Return what the ref currently proposes."""
        commit = (await self.refs(ref)).get(ref)
        if commit is None:
            return None
        await self.says("fetch", "-q", "--no-tags", "--", self._remote, ref, remote=True)
        return There(commit, await self.says("log", "-1", "--format=%an <%ae>", commit))

    async def is_mine(self, there: There) -> bool:
        """Return whether the local committer wrote the proposal."""
        known = await self.says(
            "config", "--get", "--default", "", "user.email", remote=True
        )  # the user's own settings
        # The environment comes first, as it does for git.
        mine = os.environ.get("GIT_AUTHOR_EMAIL") or known
        return bool(mine) and there.owner.casefold().endswith(f"<{mine.casefold()}>")

    async def push(self, *steps: tuple[str, str, str]) -> None:
        """Push steps (ref, expected commit, new commit): all or none."""
        # An empty expectation demands that the ref does not exist. Whatever somebody else pushed since this process
        # looked makes the push fail instead of being overwritten.
        leases = [f"--force-with-lease={ref}:{seen}" for ref, seen, _ in steps]
        specs = [f"{to}:{ref}" for ref, _, to in steps]
        # Only several refs need an atomic push, which some servers cannot do.
        await self.says(
            "push", "-q", *(["--atomic"] if len(steps) > 1 else []), *leases, "--", self._remote, *specs, remote=True
        )


@click.command()
@_remote
@_branch
@_force
@_topic
def propose(remote: str, branch: str, force: bool, topic: str) -> None:
    """Propose the commit that is checked out, as the change TOPIC: push it to refs/for/<branch>/<topic>.

    Proposing it again makes a new patchset.  A change of somebody else under this name is not overwritten.  Without
    TOPIC, the topic is the name of your branch, or is made from the commit's subject."""
    asyncio.run(_propose(WorkTree(remote), branch, topic, force=force))


async def _propose(tree: WorkTree, branch: str, topic: str, *, force: bool) -> None:
    commit = await tree.says("rev-parse", "HEAD")
    branch = await tree.branch(branch)
    topic = await tree.topic(topic, branch)
    ref, head = f"refs/for/{branch}/{topic}", (await tree.refs(f"refs/heads/{branch}"))[f"refs/heads/{branch}"]
    proposal = await tree.there(ref)
    if proposal is not None and proposal.commit == commit:
        say(f"{topic} is proposed already: {commit[:8]}.  To have it tested again: headgate recheck.")
        return
    if proposal is not None and not force and not await tree.is_mine(proposal):
        raise UserError(
            f"{topic} is proposed by {proposal.owner} ({proposal.commit[:8]}); choose another topic, or say --force"
        )
    if commit == head:
        raise UserError(f"{commit[:8]} is the head of {branch} already; commit what you propose")
    await tree.push((ref, proposal.commit if proposal is not None else "", commit))
    subject = "a new patchset of" if proposal is not None else "the change"
    say(f"Proposed {subject} {topic} for {branch}: {commit[:8]} {await tree.says('log', '-1', '--format=%s')}")
    say("What is next: its jobs run, and tell in a note (git fetch origin refs/notes/headgate:refs/notes/headgate")
    say("&& git log --notes=headgate).  It lands once it is approved:")
    say(f"  git push origin {commit[:8]}:refs/approved/{branch}/{topic}")
    say(f"To take it back: headgate withdraw {topic}")


@click.command()
@_remote
@_branch
@_force
@_topic
def withdraw(remote: str, branch: str, force: bool, topic: str) -> None:
    """Withdraw the change TOPIC: remove refs/for/<branch>/<topic>, and its approval.

    It leaves every queue.  The commits stay where they are, in your own repository."""
    asyncio.run(_withdraw(WorkTree(remote), branch, topic, force=force))


async def _withdraw(tree: WorkTree, branch: str, topic: str, *, force: bool) -> None:
    branch = await tree.branch(branch)
    topic = await tree.topic(topic, branch)
    ref, approved = f"refs/for/{branch}/{topic}", f"refs/approved/{branch}/{topic}"
    proposal = await tree.there(ref)
    if proposal is None:
        raise UserError(f"there is no proposal {topic} for {branch}; it may have landed")
    if not force and not await tree.is_mine(proposal):
        raise UserError(
            f"{topic} is proposed by {proposal.owner} ({proposal.commit[:8]}); to withdraw it all the same: --force"
        )
    steps = [(ref, proposal.commit, "")]
    # The approval goes in the same push: left alone, it would approve the commit if it were proposed again.
    steps += [(approved, seen, "") for seen in [(await tree.refs(approved)).get(approved)] if seen]
    await tree.push(*steps)
    say(f"Withdrew {topic} from {branch}: {proposal.commit[:8]}.  It leaves every queue; to propose it again:")
    say(f"  git push origin {proposal.commit[:8]}:{ref}")
