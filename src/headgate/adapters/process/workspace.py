"""Prepare the directory of one build: repositories in the state to test, playbooks, roles, and variables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from headgate.adapters.keys.clear import Clear, write_private
from headgate.adapters.process import variables
from headgate.adapters.process.context.hostvars import JobVariables
from headgate.adapters.process.context.places import Contexts, PlaybookContext, described_role, offer_roles
from headgate.adapters.work.collection import OURS
from headgate.adapters.work.directory import Directory, Strange, remove
from headgate.adapters.work.objects import unshare
from headgate.base.errors import ExecutionError
from headgate.base.tasks import run_to_end
from headgate.config.model import ANSIBLE, IncludeVars, JobRole, Playbook, ProjectFilter
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.ports.work import Checkout, CheckoutError

CHECKOUTS_MAX = 4  # concurrent checkouts of one build
DEFAULTS = (("master", "project default branch"), ("main", "project default branch"))


class BadPlaybook(ExecutionError):
    """Report that a playbook cannot run at all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Hold one playbook that is prepared to run."""

    book: Playbook
    path: Path
    roles: tuple[Path, ...]
    """Directories of roles; the first one that contains a role takes precedence."""
    context: PlaybookContext
    own: Path
    """Directory of files for only this playbook, which can read them."""
    output_dir: Path
    """Directory in which this playbook can write, but no earlier one could."""
    trees: tuple[Path, ...]
    """Repositories from which the playbook's code comes."""

    @property
    def is_ansible(self) -> bool:
        return self.path.suffix in ANSIBLE

    @property
    def variables(self) -> Path:
        return self.own / "vars.json"

    @property
    def inventory(self) -> Path:
        return self.own / "inventory.yaml"

    @property
    def secrets(self) -> Path:
        return self.own / "secrets.yaml"

    @property
    def handed(self) -> Path:
        """Return the path of the inventory with secret data of other jobs."""
        return self.own / "handed.yaml"

    @property
    def facts(self) -> Path:
        """Return the path of the directory for Ansible's facts."""
        return self.output_dir / "facts"

    def forget(self) -> None:
        """Delete the playbook's secrets, and its facts, which may contain secrets."""
        for file in (self.secrets, self.variables, self.handed):
            file.unlink(missing_ok=True)
        remove(self.facts)


@dataclass(slots=True)
class Workspace:
    """Fill a directory with `prepare`. Jobs may write below `root`/work and read the rest of `root`."""

    root: Path
    logs: Path
    """Directory of logs that stay after the build; logs in `work` are collected into it."""
    spec: BuildSpec
    state: RepoState
    checkout: Checkout
    hostname: str
    site: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the site, which take precedence over all others. JSON."""
    artifacts: Mapping[bool, Sequence[Any]] = field(default_factory=dict)
    """Trust of a playbook -> its artifacts, with URLs that it can reach, if these differ from the gate's. JSON."""
    projects: dict[str, dict[str, Any]] = field(default_factory=dict)
    included: dict[str, Any] = field(default_factory=dict)
    """Variables of the files that the job includes. JSON."""
    _trees: dict[tuple[str, str, bool], Path] = field(default_factory=dict)
    _commits: dict[Path, str] = field(default_factory=dict)
    """Tree -> its commit."""
    _roles: dict[tuple[str, str, str, bool], list[dict[str, Any]]] = field(default_factory=dict)
    """Roles of the playbooks; see `variables.Plays`."""
    _shared: dict[Path, tuple[Path, ...]] = field(default_factory=dict)
    """Repository -> the object directories that it borrows; determined at checkout, so that jobs cannot add any."""
    contexts: Contexts = field(init=False)
    _staged: int = 0

    def __post_init__(self) -> None:
        self.contexts = Contexts(self.root / "contexts")

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def src(self) -> Path:
        return self.work / "src"

    def home(self) -> Path:
        """Return the directory in which executables start: the repository of the change, unless the job has replaced
        it.
        """
        place = self._place(self.spec.change.project)
        with Directory.at(self.work) as work:
            exists = work.is_directory(*place.relative_to(self.work).parts)
        return place if exists else self.work

    def _place(self, project: str) -> Path:
        return self.work / str(variables.project(project, self.spec.job.workspace_scheme)["src_dir"])

    @property
    def plays(self) -> bool:
        """Return whether Ansible runs any of the job's playbooks."""
        job = self.spec.job
        return any(book.path.endswith(ANSIBLE) for book in (*job.pre_run, *job.run, *job.post_run))

    @property
    def result(self) -> Path:
        return self.work / "results.json"

    async def prepare(self) -> None:
        """Fill the directory. Raise BadPlaybook, CheckoutError or OSError."""
        for name in ("src", "logs"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        for name in OURS:
            # Use links, so that a job can read its log but not change it: no build may write to their targets.
            (self.work / "logs" / name).symlink_to(self.logs / name)
        job = self.spec.job
        required = {r.project: r.override_checkout for r in job.required_projects}
        every, limit = {**dict.fromkeys(self._touched(), ""), **required}, asyncio.Semaphore(CHECKOUTS_MAX)
        self._apart(every)

        async def prepare_one(project: str, override: str) -> None:
            async with limit:
                self._vacant(project)
                branch, why = await self._branch(project, (override, "project override ref"))
                files, place = variables.checked_out(job), self._place(project)
                done = await self.checkout.checkout(self.state, project, branch, place, files=files)
                # Ansible may copy the tree to another machine, where borrowed objects would be missing; other
                # programs of jobs run here.
                if self.plays:
                    await run_to_end(asyncio.to_thread(unshare, place, done.shares))
                else:
                    self._shared[place] = done.shares
            self.projects[project] = {
                **variables.project(project, job.workspace_scheme),
                "checkout": branch,
                "checkout_description": why,
                "commit": done.commit,
                "required": project in required,
            }

        for together in self._outer_first(every):
            await _all(prepare_one(project, every[project]) for project in together)
        self.projects = dict(sorted(self.projects.items()))
        for file in job.include_vars:
            self.included |= await self._included(file)

    def _touched(self) -> Iterator[str]:
        """Yield the projects of the changes that the job wants, in addition to those that it requires. A job with
        `reuse` gets none of other items, so that these cannot affect it."""
        job, item = self.spec.job, self.spec.item
        own = {self.spec.change.project}
        names = {"change": own, "item": own | {one.project for one in self.state.chain if one.item == item}}

        def named(filters: Sequence[ProjectFilter], project: str) -> bool:
            short = project.partition("/")[2]
            return any(
                project in names[one.type] if one.type in names else one.name in (project, short) for one in filters
            )

        chain = (one.project for one in self.state.chain if one.item == item or not job.reuse)
        for project in dict.fromkeys((*chain, self.spec.change.project)):
            included = job.include_projects is None or named(job.include_projects, project)
            if included and not named(job.exclude_projects or (), project):
                yield project

    def _apart(self, projects: Iterable[str]) -> None:
        """Check that all projects have different directories.  Raise BadPlaybook."""
        known: dict[Path, str] = {}
        for project in projects:
            other = known.setdefault(self._place(project), project)
            if other != project:
                scheme, place = self.spec.job.workspace_scheme, self._place(project).relative_to(self.work)
                raise BadPlaybook(f"with workspace-scheme {scheme} both {other} and {project} would be in {place}")

    def _outer_first(self, projects: Iterable[str]) -> list[list[str]]:
        """Return the projects grouped by nesting: first those outside of other projects' directories, then those inside
        of them, and so on."""
        places = {project: self._place(project) for project in projects}
        depths = {p: sum(other in place.parents for other in places.values()) for p, place in places.items()}
        return [[p for p in depths if depths[p] == depth] for depth in sorted(set(depths.values()))]

    def _vacant(self, project: str) -> None:
        """Check the directory of a project that is inside another project's directory: the other one's untrusted files
        must not include files there, or a link that leads outside. Raise BadPlaybook, OSError."""
        place = self._place(project).relative_to(self.work)
        try:
            with Directory.at(self.work) as work, work.below(*place.parts) as directory:
                why = "files already exist there" if next(directory.names(), None) is not None else ""
        except FileNotFoundError:
            return
        except Strange as strange:
            why = str(strange)
        if why:
            raise BadPlaybook(f"{project} belongs in {place}, in the files of another project, but {why}")

    async def _branch(self, project: str, *first: tuple[str, str]) -> tuple[str, str]:
        """Return the branch or ref to check out, and why.  Raise CheckoutError."""
        override, change = self.spec.job.override_checkout, self.spec.change
        own = change.ref if change.project == project and not change.is_change and not change.branch else ""
        choices = ((override, "job override ref"), (own, "zuul ref"), (change.branch, "zuul branch"), *DEFAULTS)
        return await self._chosen(project, (*first, *choices))

    async def _chosen(self, project: str, choices: Iterable[tuple[str, str]]) -> tuple[str, str]:
        """Return the first existing choice, otherwise the project's first branch, and why. Raise CheckoutError."""
        known = await self.checkout.branches(self.state, project)
        for name, why in choices:
            if name and name in known:
                return name, why
        if not known:
            raise CheckoutError(f"{project} has no branches")
        return min(known), "first branch"

    async def _included(self, file: IncludeVars) -> dict[str, Any]:
        """Read the variables of a file that the job includes.  Raise BadPlaybook, CheckoutError, OSError."""
        change, override = self.spec.change, (self.spec.job.override_checkout, "")
        project = change.project if file.zuul_project else file.project
        landed = file.trusted or (file.zuul_project and not file.use_ref)
        branch = file.branch or (await self._branch(project, override))[0]
        tree = await self._tree(project, branch, landed)
        path = tree / file.name
        where = f"{project} {branch} has"
        if not path.is_file() or not path.resolve().is_relative_to(tree.resolve()):
            if not file.required:
                return {}
            raise BadPlaybook(f"{where} no file {file.name}, from which job {self.spec.job.name} includes variables")
        try:
            return await run_to_end(asyncio.to_thread(variables.included, path))
        except ValueError as error:
            raise BadPlaybook(f"{where} a file {file.name} that cannot be included: {error}") from error

    async def stage(self, book: Playbook) -> Stage:
        """Return a playbook with its file (as landed if it is trusted, otherwise as proposed) and its own directories.
        Raise BadPlaybook, CheckoutError, OSError."""
        tree = await self._tree(book.project, book.branch, book.trusted)
        path = tree / book.path
        # Check the resolved path: a link in the repository could lead to any file that the executor can read.
        if not path.is_file() or not path.resolve().is_relative_to(tree.resolve()):
            where = f"{book.project} {book.branch}"
            raise BadPlaybook(f"{where} has no file {book.path}, which job {self.spec.job.name} runs")
        own, output_dir = self._own()
        trees = {tree: None}
        descriptions = list[dict[str, Any]]()
        roles = [p / "roles" for p in path.parents if p.is_relative_to(tree) and (p / "roles").is_dir()]
        for role in book.roles if path.suffix in ANSIBLE else ():
            branch, why = await self._role(book, role)
            offered = await self._tree(role.project, branch, book.trusted)
            trees[offered] = None
            place = offer_roles(role, offered, own / "roles")
            if place is not None and place not in roles:
                roles.append(place)
                descriptions.append(described_role(role, place, offered, (branch, why)))
        self._roles[book.project, book.branch, book.path, book.trusted] = descriptions
        return Stage(book, path, tuple(roles), self.contexts.of(book), own, output_dir, tuple(trees))

    def aside(self, path: Path) -> Stage:
        """Return one of Headgate's own playbooks, which runs without any rights."""
        book = Playbook("", "", "", path.name)
        return Stage(book, path, (), self.contexts.of(book), *self._own(), ())

    def _own(self) -> tuple[Path, Path]:
        """Make and return two directories for one playbook: one that it reads, and in it one where it writes."""
        self._staged += 1
        own = self.root / "playbooks" / str(self._staged)
        output_dir = own / "said"
        output_dir.mkdir(parents=True)
        return own, output_dir

    async def _role(self, book: Playbook, role: JobRole) -> tuple[str, str]:
        """Return the branch of a project for its roles, and why; for a trusted playbook, neither the job nor the change
        affects it. Raise CheckoutError."""
        playbook = book.branch, "playbook branch"
        if role.project == book.project:
            return playbook
        if book.trusted:
            return await self._chosen(role.project, (playbook, *DEFAULTS))
        own = [r.override_checkout for r in self.spec.job.required_projects if r.project == role.project]
        required = ((name, "project override ref") for name in own)
        return await self._branch(
            role.project, *required, (self.spec.job.override_checkout, "job override ref"), playbook
        )

    async def _tree(self, project: str, branch: str, trusted: bool) -> Path:
        """Return a checkout that all playbooks share, and to which none can write.  Raise CheckoutError, OSError."""
        key = (project, branch, trusted)
        # Separate trees by trust: a trusted playbook's tree contains only landed commits.
        dest = self.root / ("trusted" if trusted else "untrusted") / quote(project, safe="") / quote(branch, safe="")
        if key not in self._trees:
            done = await self.checkout.checkout(self.state, project, branch, dest, speculative=not trusted)
            # Record this before any job runs, which could write another path into .git/objects/info/alternates to
            # have it mounted.
            self._shared[dest], self._commits[dest] = done.shares, done.commit
            self._trees[key] = dest
        return dest

    def variables(self, stage: Stage | None = None, clear: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the variables of executables, each with the value of highest precedence, without secret data of other
        jobs. `clear` contains secrets; no variable of a job overrides one of a trusted playbook. JSON."""
        extra = self.spec.job.extra_vars
        # Otherwise the author of a job could change what a trusted playbook does, by overriding its variables.
        above = {} if stage and stage.book.trusted else extra
        weak = {**JobVariables(self.spec, self.included).everywhere, **extra}
        return {**weak, **(clear or {}), **above, **self.site, "zuul": self.zuul(stage)}

    def zuul(self, stage: Stage | None = None) -> dict[str, Any]:
        """Return the `zuul` variable.  JSON."""
        places = {
            "hostname": self.hostname,
            "src_root": str(self.src),
            "log_root": str(self.work / "logs"),
            "work_root": str(self.work),
            "result_data_file": str(self.result),
            **({"inventory_file": str(stage.inventory)} if stage else {}),
        }
        trees = {
            str(tree): {"canonical_name": project, "checkout": branch, "commit": self._commits[tree]}
            for (project, branch, _), tree in self._trees.items()
        }
        found = variables.zuul(self.spec, self.state, self.projects, places, trees, self._roles)
        if stage and stage.book.trusted in self.artifacts:
            found["artifacts"] = self.artifacts[stage.book.trusted]
        return found

    def write_variables(self, stage: Stage, more: Mapping[str, Any], clear: Clear, handed: Clear) -> None:
        """Write the variables to the file that an executable reads; it may contain secrets until `Stage.forget`."""
        write_private(stage.variables, _json({**handed, **self.variables(stage, clear), **more}))

    def forget(self) -> None:
        """Remove files of playbooks with secrets, and access to clusters."""
        self.contexts.forget()

    def writable(self, stage: Stage) -> Sequence[Path]:
        """Return the directories in which a playbook may write."""
        return self.work, *stage.context.writable, stage.output_dir

    def readable(self, stage: Stage) -> Sequence[Path]:
        """Return the paths that a playbook must be able to read: its own files, code, and borrowed objects."""
        return list(dict.fromkeys((stage.own, *stage.trees, self.logs, *self.objects(*stage.trees))))

    def objects(self, *trees: Path) -> list[Path]:
        """Return the object directories that `trees` and the repositories of the work directory borrow."""
        every = (*map(self._place, self.projects), *trees)
        return [place for tree in every for place in self._shared.get(tree, ())]


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


async def _all(works: Any) -> None:  # an iterable of coroutines of any result
    """Await all of them together; after a failure, end the others and raise only that error."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
