"""The directory of one build: repositories at the state to be tested, playbooks, roles, and what jobs are told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.keys.clear import Clear, write_private
from headgate.adapters.process import variables
from headgate.config.model import IncludeVars, Playbook
from headgate.gate.work import BuildSpec, RepoState
from headgate.ports.checkout import Checkout, CheckoutError

CHECKOUTS_MAX = 4
"""At a time, of one build."""
ROLE_PREFIX = "ansible-role-"
_ROLE_PARTS = ("tasks", "vars", "templates", "files", "handlers", "meta", "defaults", "library")


class Unusable(Exception):
    """A playbook that cannot be run at all."""


@dataclass(slots=True)
class Workspace:
    """`prepare` fills it.  Jobs may write below `root`/work; the rest of `root` they can read."""

    root: Path
    logs: Path
    """Where logs are kept after the build; those of `work` are collected into it."""
    spec: BuildSpec
    state: RepoState
    checkout: Checkout
    hostname: str
    site: Mapping[str, Any] = field(default_factory=dict)
    """The site's variables: above all others.  JSON."""
    projects: dict[str, dict[str, Any]] = field(default_factory=dict)
    included: dict[str, Any] = field(default_factory=dict)
    """Variables of the files that the job includes.  JSON."""
    _trees: dict[tuple[str, str, bool], Path] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def src(self) -> Path:
        return self.work / "src"

    @property
    def home(self) -> Path:
        """Where executables are started: the repository of the change."""
        return self._place(self.spec.change.project)

    def _place(self, project: str) -> Path:
        return self.work / str(variables.project(project, self.spec.job.workspace_scheme)["src_dir"])

    @property
    def result(self) -> Path:
        return self.work / "results.json"

    async def prepare(self) -> None:
        """Raises Unusable, CheckoutError, OSError."""
        for name in ("src", "tmp", "home", "logs"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        (self.work / "logs/job-output.txt").symlink_to(self.logs / "job-output.txt")
        spec, job = self.spec, self.spec.job
        wanted = {item.project: "" for item in self.state.chain} | {spec.change.project: ""}
        required = {r.project: r.override_checkout for r in job.required_projects}
        limit = asyncio.Semaphore(CHECKOUTS_MAX)
        self._apart({**wanted, **required})

        async def one(project: str, override: str) -> None:
            async with limit:
                branch, why = await self._branch(project, (override, "project override ref"))
                commit = await self.checkout.checkout(self.state, project, branch, self._place(project))
            self.projects[project] = {
                **variables.project(project, job.workspace_scheme),
                "checkout": branch,
                "checkout_description": why,
                "commit": commit,
                "required": project in required,
            }

        await _all(one(project, override) for project, override in {**wanted, **required}.items())
        self.projects = dict(sorted(self.projects.items()))
        for file in job.include_vars:
            self.included |= await self._included(file)
        (self.logs / "zuul-info").mkdir(exist_ok=True)
        told = {"all": {"vars": self.variables()}}
        (self.logs / "zuul-info/inventory.yaml").write_bytes(_json(told))  # JSON is YAML

    def _apart(self, projects: Iterable[str]) -> None:
        """Raises Unusable."""
        known: dict[Path, str] = {}
        for project in projects:
            other = known.setdefault(self._place(project), project)
            if other != project:
                scheme, place = self.spec.job.workspace_scheme, self._place(project).relative_to(self.work)
                raise Unusable(f"with workspace-scheme {scheme} both {other} and {project} would be in {place}")

    async def _branch(self, project: str, *first: tuple[str, str]) -> tuple[str, str]:
        """What is checked out of a project, and why (gating-behaviour §14.3).  Raises CheckoutError."""
        known, change = await self.checkout.branches(self.state, project), self.spec.change
        choices = (
            *first, (self.spec.job.override_checkout, "job override ref"), (change.branch, "zuul branch"),
            ("master", "project default branch"), ("main", "project default branch"),
        )  # fmt: skip
        for name, why in choices:
            if name and name in known:
                return name, why
        if not known:
            raise CheckoutError(f"{project} has no branches")
        return min(known), "first branch"

    async def _included(self, file: IncludeVars) -> dict[str, Any]:
        """Raises Unusable, CheckoutError, OSError."""
        change, override = self.spec.change, (self.spec.job.override_checkout, "")
        project = change.project if file.zuul_project else file.project
        landed = file.trusted or (file.zuul_project and not file.use_ref)
        branch = file.branch or (await self._branch(project, override))[0]
        tree = await self._tree(project, branch, trusted=landed)
        path = tree / file.name
        where = f"{project} {branch} has"
        if not path.is_file() or not path.resolve().is_relative_to(tree.resolve()):
            if not file.required:
                return {}
            raise Unusable(f"{where} no file {file.name}, which job {self.spec.job.name} includes variables from")
        try:
            return variables.included(path)
        except ValueError as error:
            raise Unusable(f"{where} a file {file.name} that cannot be included: {error}") from error

    async def playbook(self, book: Playbook) -> Path:
        """The file, in a checkout of its repository: as landed when trusted, as proposed when not.

        Raises Unusable, CheckoutError, OSError."""
        tree = await self._tree(book.project, book.branch, trusted=book.trusted)
        path = tree / book.path
        if not path.is_file() or not path.resolve().is_relative_to(tree.resolve()):
            raise Unusable(f"{book.project} {book.branch} has no file {book.path}, which job {self.spec.job.name} runs")
        return path

    async def _tree(self, project: str, branch: str, *, trusted: bool) -> Path:
        """Made once for all playbooks of the build.  Raises CheckoutError, OSError."""
        key = (project, branch, trusted)
        dest = self.root / ("trusted" if trusted else "untrusted") / project / branch.replace("/", "%2F")
        if key not in self._trees:
            await self.checkout.checkout(self.state, project, branch, dest, speculative=not trusted)
            self._trees[key] = dest
        return dest

    async def roles(self, book: Playbook) -> list[Path]:
        """Directories of roles, the first that has a role wins: beside the playbook, then of each project named.

        A project offers its directory `roles`; one without it is a single role, named as the project is, without
        `ansible-role-`.  With a trusted playbook all are as landed.  Raises CheckoutError, OSError."""
        tree = await self._tree(book.project, book.branch, trusted=book.trusted)
        found = [p / "roles" for p in (tree / book.path).parents if p.is_relative_to(tree) and (p / "roles").is_dir()]
        for project in dict.fromkeys((*self.spec.job.roles, book.project)):
            if project == book.project:
                offered = tree
            else:
                branch, _ = await self._branch(project, (self.spec.job.override_checkout, ""), (book.branch, ""))
                offered = await self._tree(project, branch, trusted=book.trusted)
            place = self._offer(project, offered)
            if place is not None and place not in found:
                found.append(place)
        return found

    def _offer(self, project: str, tree: Path) -> Path | None:
        if (tree / "roles").is_dir():
            return tree / "roles"
        if not any((tree / part).is_dir() for part in _ROLE_PARTS):
            return None
        place = tree.with_name(f"{tree.name}.role")
        place.mkdir(exist_ok=True)
        link = place / project.rpartition("/")[2].removeprefix(ROLE_PREFIX)
        if not link.is_symlink():
            link.symlink_to(tree)
        return place

    def variables(self, clear: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What executables are told, the strongest value of each; `clear` are secrets.  JSON."""
        job = self.spec.job
        weak = {**self.spec.parent_data, **self.included, **job.vars, **job.group_vars.get("all", {})}
        return {**weak, **(clear or {}), **job.extra_vars, **self.site, "zuul": self.zuul()}

    def zuul(self) -> dict[str, Any]:
        """The `zuul` variable.  JSON."""
        places = {
            "hostname": self.hostname,
            "src_root": str(self.src),
            "log_root": str(self.work / "logs"),
            "work_root": str(self.work),
            "result_data_file": str(self.result),
            "inventory_file": str(self.root / "inventory.json"),
        }
        return variables.zuul(self.spec, self.state, self.projects, places)

    def write_variables(self, more: Mapping[str, Any], clear: Clear) -> None:
        """Into the file that executables read; with secrets in it, until `forget`."""
        write_private(self._variables_file, _json({**self.variables(clear), **more}))

    def forget(self, clear: Clear) -> None:
        """The secrets that the last executable was told."""
        if clear:
            self._variables_file.unlink(missing_ok=True)

    @property
    def _variables_file(self) -> Path:
        return self.work / "vars.json"

    def readable(self) -> Sequence[Path]:
        """What a job must be able to read, wherever it is: this Python, and the objects its repositories share."""
        shared = [
            Path(line)
            for tree in (*(self._place(name) for name in self.projects), *self._trees.values())
            if (alternates := tree / ".git/objects/info/alternates").exists()
            for line in alternates.read_text().splitlines()
        ]
        python = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])
        return list(dict.fromkeys((self.root, self.logs, *python, *shared)))


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


async def _all(works: Any) -> None:  # an iterable of coroutines of any result
    """Together; the first failure ends the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
