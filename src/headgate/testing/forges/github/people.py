"""Make and serve a stand-in for GitHub, and act as the people who use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from headgate.testing.forges.github import hosts, model
from headgate.testing.forges.github.access import FakeGitHubForge, FakeGitHubLimits
from headgate.testing.forges.github.acts import FakeGitHubPost, Pulls
from headgate.testing.forges.github.mail import Mail, Postman
from headgate.testing.forges.github.says import Says
from headgate.testing.forges.github.server import FakeGitHubFault, FakeGitHubServer
from headgate.testing.forges.github.views import FakeGitHubShows, Shown
from headgate.testing.servers.program import free_ports


@dataclass(frozen=True, slots=True)
class FakeGitHubPerson:
    """Act as a person who uses the forge in a browser and with git."""

    forge: FakeGitHubForge
    account: model.FakeGitHubAccount

    def push(
        self,
        repository: model.FakeGitHubRepository,
        branch: str,
        files: Mapping[str, str | None],
        message: str = "Change",
        *,
        base: str | None = None,
        merges: str | None = None,
    ) -> str:
        """Put a commit on a branch, which begins at `base` when it is new; return it.  `merges`: another parent."""
        before = hosts.heads(repository)
        parent = before.get(branch) or before.get(base or repository.default_branch)
        signature = hosts.signature(self.account, self.forge.world.clock.now_s())
        parents = [one for one in (parent, merges) if one]
        commit = hosts.commit(repository, parents, files, message, signature)
        hosts.point(repository, f"refs/heads/{branch}", commit)
        self.forge.pulls.pushed(repository, self.account, before)
        return commit

    def reset(self, repository: model.FakeGitHubRepository, branch: str, commit: str | None) -> None:
        """Force a branch to a commit; None removes it."""
        before = hosts.heads(repository)
        hosts.point(repository, f"refs/heads/{branch}", commit)
        self.forge.pulls.pushed(repository, self.account, before)

    def propose(
        self,
        repository: model.FakeGitHubRepository,
        branch: str,
        files: Mapping[str, str | None],
        title: str = "A change",
        body: str | None = None,
        *,
        base: str = "",
        fork: model.FakeGitHubRepository | None = None,
        draft: bool = False,
    ) -> model.FakeGitHubPull:
        """Push a branch with one commit and open a pull request from it."""
        base, home = base or repository.default_branch, fork or repository
        # The fork may be older than the base; a person would update it first.
        if fork is not None and base in hosts.heads(repository):
            tip = hosts.heads(repository)[base]
            hosts.bring(repository, fork, tip, f"refs/heads/{base}")
        self.push(home, branch, files, title, base=base)
        return self.open(repository, branch, title, body, base=base, fork=fork, draft=draft)

    def open(
        self,
        repository: model.FakeGitHubRepository,
        branch: str,
        title: str = "A change",
        body: str | None = None,
        *,
        base: str = "",
        fork: model.FakeGitHubRepository | None = None,
        draft: bool = False,
    ) -> model.FakeGitHubPull:
        """Open a pull request from an existing branch."""
        return self.forge.pulls.open(
            repository, fork or repository, branch, base or repository.default_branch, self.account, title, body, draft
        )

    def fork(self, repository: model.FakeGitHubRepository) -> model.FakeGitHubRepository:
        """Make a fork of the repository, and return it."""
        name = f"{self.account.login}/{repository.name}"
        made = make_repository(self.forge.world, name, {}, repository.default_branch)
        made.fork_of = repository
        for branch, tip in hosts.heads(repository).items():
            hosts.bring(repository, made, tip, f"refs/heads/{branch}")
        return made

    def review(
        self,
        pull: model.FakeGitHubPull,
        state: Literal["APPROVED", "CHANGES_REQUESTED", "COMMENTED"] = "APPROVED",
        body: str = "",
    ) -> model.FakeGitHubReview:
        """Review a pull request."""
        return self.forge.says.review(pull, self.account, state, body)

    def comment(self, pull: model.FakeGitHubPull, body: str) -> model.FakeGitHubComment:
        """Comment on it."""
        return self.forge.says.comment(pull, self.account, body)

    def label(self, pull: model.FakeGitHubPull, *names: str, off: bool = False) -> None:
        """Add labels, or remove them."""
        for name in names:
            act = self.forge.says.unlabel if off else self.forge.says.label
            act(pull, self.account, name)

    def close(self, pull: model.FakeGitHubPull) -> None:
        """Close it without merging."""
        self.forge.pulls.close(pull, self.account)

    def reopen(self, pull: model.FakeGitHubPull) -> None:
        """Open it again."""
        self.forge.pulls.reopen(pull, self.account)

    def edit(self, pull: model.FakeGitHubPull, **what: str) -> None:
        """Change title, body or base."""
        self.forge.pulls.edit(pull, self.account, **what)

    def set_draft(self, pull: model.FakeGitHubPull, draft: bool = True) -> None:
        """Make it a draft, or ready."""
        self.forge.pulls.set_draft(pull, self.account, draft)

    def status(self, pull: model.FakeGitHubPull, context: str, state: str = "success") -> None:
        """Set a status of its head, as another program does."""
        self.forge.says.status(pull.repository, self.account, pull.head_sha, state, context, None, None)

    def rerun(self, repository: model.FakeGitHubRepository, run: model.CheckRun) -> None:
        """Request another run of a check."""
        run.rerun_requested = True
        self.forge.says.check(repository, self.account, run, "rerequested")

    def click(self, repository: model.FakeGitHubRepository, run: model.CheckRun, identifier: str) -> None:
        """Use a button of a check run."""
        wanted = {"identifier": identifier}
        self.forge.says.check(repository, self.account, run, "requested_action", requested_action=wanted)


def make_repository(
    world: model.FakeGitHubWorld, full_name: str, files: Mapping[str, str], branch: str = "main"
) -> model.FakeGitHubRepository:
    """Make a repository with one commit; without files it has none."""
    owner, _, name = full_name.partition("/")
    account = world.accounts.get(owner) or world.account(owner, "Organization")
    git_dir = world.root / f"{next(world.ids)}-{name}.git"
    hosts.make(git_dir, branch)
    now_s = world.clock.now_s()
    made = model.FakeGitHubRepository(next(world.ids), account, name, git_dir, branch, created_s=now_s, pushed_s=now_s)
    world.repositories[full_name] = made
    if files:
        first = hosts.commit(made, [], files, "Begin", hosts.signature(account, now_s))
        hosts.point(made, f"refs/heads/{branch}", first)
    return made


@dataclass(slots=True)
class GitHub:
    """Imitate GitHub. Actions take effect immediately; webhooks follow, and `mail.delivered` waits for them."""

    url: str
    world: model.FakeGitHubWorld
    mail: Mail
    server: FakeGitHubServer
    limits: FakeGitHubLimits
    forge: FakeGitHubForge
    keys: dict[int, str]
    """App -> its private key, as PEM."""

    def person(self, login: str, **roles: str) -> FakeGitHubPerson:
        """Return a new person; `roles` maps repositories (with __ for /) to roles."""
        account = self.world.account(login)
        for repository, role in roles.items():
            self.world.repositories[repository.replace("__", "/")].roles[login] = role
        return FakeGitHubPerson(self.forge, account)

    def repository(self, full_name: str, files: Mapping[str, str], branch: str = "main") -> model.FakeGitHubRepository:
        """Make a repository."""
        return make_repository(self.world, full_name, files, branch)

    def app(self, slug: str = "headgate", hook_url: str = "", hook_secret: str = "") -> model.App:
        """Register an app; its private key is in `keys`."""
        key = rsa.generate_private_key(65537, 2048)
        # GitHub issues the keys of apps in this format.
        kinds = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        private = key.private_bytes(*kinds, serialization.NoEncryption()).decode()
        format_ = serialization.PublicFormat.SubjectPublicKeyInfo
        public = key.public_key().public_bytes(serialization.Encoding.PEM, format_).decode()
        # As at GitHub, each app has an account whose name ends with `[bot]`.
        owner, bot = self.world.account("octo", "Organization"), self.world.account(f"{slug}[bot]", "Bot")
        one = model.App(next(self.world.ids), slug, owner, bot, public, hook_url=hook_url, hook_secret=hook_secret)
        self.world.apps[one.id], self.keys[one.id] = one, private
        return one

    def install(self, app: model.App, owner: str, *projects: str) -> model.FakeGitHubInstallation:
        """Install an app for an account: for some of its repositories, or all."""
        account = self.world.accounts.get(owner) or self.world.account(owner, "Organization")
        # Without projects, the app is installed in all repositories of the account.
        one = model.FakeGitHubInstallation(next(self.world.ids), app, account, set(projects) or None)
        self.world.installations[one.id] = one
        return one

    def token(self, login: str) -> str:
        """Return a new personal token of a person."""
        text = f"ghp_{next(self.world.ids):036d}"
        self.world.tokens[text] = model.FakeGitHubToken(text, self.world.account(login), None, float("inf"))
        return text

    def protect(
        self, repository: model.FakeGitHubRepository, pattern: str = "main", **how: Any
    ) -> model.FakeGitHubProtection:
        """Protect branches in the classic way; see `FakeGitHubProtection`."""
        one = model.FakeGitHubProtection(next(self.world.ids), pattern, **how)
        repository.protections.append(one)
        self._ruled(repository, one, "created")
        return one

    def edit(
        self, repository: model.FakeGitHubRepository, one: model.FakeGitHubProtection | model.Ruleset, **how: Any
    ) -> None:
        """Change a rule of branches."""
        for name, value in how.items():
            setattr(one, name, value)
        self._ruled(repository, one, "edited")

    def unprotect(
        self, repository: model.FakeGitHubRepository, one: model.FakeGitHubProtection | model.Ruleset
    ) -> None:
        """Delete a rule of branches."""
        rules: list[Any] = repository.rulesets if isinstance(one, model.Ruleset) else repository.protections
        rules.remove(one)
        self._ruled(repository, one, "deleted")

    def _ruled(
        self, repository: model.FakeGitHubRepository, one: model.FakeGitHubProtection | model.Ruleset, action: str
    ) -> None:
        tell, owner = self.forge.post.tell, repository.owner
        if isinstance(one, model.FakeGitHubProtection):
            tell(repository, owner, "branch_protection_rule", action, rule=_shown_rule(repository, one))
        elif not one.organization:  # webhooks of those go to the organization
            shown = _shown_ruleset(repository, one)
            tell(repository, owner, "repository_ruleset", action, repository_ruleset=shown)

    def ruleset(
        self, repository: model.FakeGitHubRepository, *rules: dict[str, Any], name: str = "Rules", **how: Any
    ) -> model.Ruleset:
        """Add a ruleset for the default branch; see `Ruleset`."""
        one = model.Ruleset(next(self.world.ids), name, how.pop("branches", ("~DEFAULT_BRANCH",)), list(rules), **how)
        repository.rulesets.append(one)
        self._ruled(repository, one, "created")
        return one

    def rename(self, repository: model.FakeGitHubRepository, name: str) -> None:
        """Rename a repository; the old name redirects to it."""
        old = repository.full_name
        repository.name = name
        del self.world.repositories[old]
        self.world.repositories[repository.full_name] = repository
        # If the new name is a former name of another repository, that redirect ends.
        self.world.moved.pop(repository.full_name, None)
        self.world.moved[old] = repository.full_name
        changes = {"repository": {"name": {"from": old.partition("/")[2]}}}
        self.forge.post.tell(repository, repository.owner, "repository", "renamed", changes=changes)

    def transfer(self, repository: model.FakeGitHubRepository, to: model.FakeGitHubAccount) -> None:
        """Move a repository to another owner; the old name redirects to it."""
        old, repository.owner = repository.full_name, to
        del self.world.repositories[old]
        self.world.repositories[repository.full_name] = repository
        # If the new name is a former name of another repository, that redirect ends.
        self.world.moved.pop(repository.full_name, None)
        self.world.moved[old] = repository.full_name

    def remove_fork(self, repository: model.FakeGitHubRepository) -> None:
        """Delete a fork that pull requests come from; they stay."""
        del self.world.repositories[repository.full_name]
        # Pull requests from a deleted fork stay, but have no source repository.
        for one in self.world.repositories.values():
            for pull in one.pulls.values():
                if pull.head_repository is repository:
                    pull.head_repository = None

    def fail(self, method: str = "", template: str = "", times: int = 1, **how: Any) -> FakeGitHubFault:
        """Make the next calls of a kind fail; see `FakeGitHubFault`."""
        one = FakeGitHubFault(method, template, times, **how)
        self.server.faults.append(one)
        return one


def _shown_rule(at: model.FakeGitHubRepository, one: model.FakeGitHubProtection) -> Shown:
    """Return a classic rule in the form of webhooks."""

    def level(enabled: bool) -> str:
        return "everyone" if enabled else "off"

    return {
        "id": one.id,
        "repository_id": at.id,
        "name": one.pattern,
        "created_at": model.stamp(0),
        "updated_at": model.stamp(0),
        "pull_request_reviews_enforcement_level": level(one.approvals is not None),
        "required_approving_review_count": one.approvals or 0,
        "dismiss_stale_reviews_on_push": False,
        "require_code_owner_review": one.code_owners,
        "authorized_dismissal_actors_only": False,
        "ignore_approvals_from_contributors": False,
        "required_status_checks": list(one.contexts),
        "required_status_checks_enforcement_level": level(bool(one.contexts)),
        "strict_required_status_checks_policy": one.strict,
        "signature_requirement_enforcement_level": level(one.signatures),
        "linear_history_requirement_enforcement_level": level(one.linear),
        "lock_branch_enforcement_level": level(one.locked),
        "admin_enforced": one.enforce_admins,
        "create_protected": False,
        "allow_force_pushes_enforcement_level": "off",
        "allow_deletions_enforcement_level": "off",
        "merge_queue_enforcement_level": "off",
        "required_deployments_enforcement_level": "off",
        "required_conversation_resolution_level": level(one.conversations),
        "authorized_actors_only": one.pushers is not None,
        "authorized_actor_names": sorted(one.pushers or ()),
    }


def _shown_ruleset(at: model.FakeGitHubRepository, one: model.Ruleset) -> Shown:
    """Return a ruleset in the form of webhooks."""
    return {
        "id": one.id,
        "name": one.name,
        "target": "branch",
        "source_type": "Repository",
        "source": at.full_name,
        "enforcement": one.enforcement,
        "conditions": {"ref_name": {"include": list(one.branches), "exclude": []}},
        "created_at": model.stamp(one.created_s),
        "updated_at": model.stamp(one.created_s),
    }


@asynccontextmanager
async def github(root: Path) -> AsyncIterator[GitHub]:
    """Provide a GitHub on a free port of 127.0.0.1 that keeps its repositories below `root`."""
    port = free_ports(1)[0]
    url, world = f"http://127.0.0.1:{port}", model.FakeGitHubWorld(root)
    mail, limits, shows = Mail(world.clock), FakeGitHubLimits(world), FakeGitHubShows(world, url, f"{url}/api/v3")
    post = FakeGitHubPost(world, shows, mail)
    forge = FakeGitHubForge(world, shows, mail, limits, post, Pulls(world, post), Says(world, post))
    server = FakeGitHubServer(forge)
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with Postman(mail):
            yield GitHub(url, world, mail, server, limits, forge, {})
    finally:
        # Releases requests that hang on purpose; the cleanup would wait for them.
        for fault in server.faults:
            fault.until.set()
        await runner.cleanup()
