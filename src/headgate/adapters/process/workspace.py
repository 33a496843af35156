"""The directory of one build: repositories, variables, inventory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.adapters.process.returning import RESULT_VARIABLE
from headgate.config.model import Playbook
from headgate.gate.work import BuildSpec, RepoState
from headgate.ports.checkout import Checkout, CheckoutError


@dataclass(slots=True)
class Workspace:
    """`prepare` fills it; everything a playbook may write lies below `root` and `logs`."""

    root: Path
    logs: Path
    spec: BuildSpec
    state: RepoState
    checkout: Checkout
    hostname: str
    projects: dict[str, dict[str, Any]] = field(default_factory=dict)
    _books: dict[tuple[str, str, bool], Path] = field(default_factory=dict)

    @property
    def src(self) -> Path:
        return self.root / "work" / "src"

    @property
    def home(self) -> Path:
        return self.src / self.spec.change.project

    @property
    def result(self) -> Path:
        return self.root / "work" / "results.json"

    async def prepare(self) -> None:
        """Raises CheckoutError, OSError."""
        for name in ("work/src", "work/tmp", "work/home"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        spec, job = self.spec, self.spec.job
        wanted = {item.project: "" for item in self.state.chain} | {spec.change.project: ""}
        required = {r.project: r.override_checkout for r in job.required_projects}
        for project, override in {**wanted, **required}.items():
            branch = self._branch(project, override or job.override_checkout)
            dest = self.src / project
            dest.mkdir(parents=True)
            commit = await self.checkout.checkout(self.state, project, branch, dest)
            host, _, name = project.partition("/")
            self.projects[project] = {
                "name": name,
                "short_name": name.rpartition("/")[2],
                "canonical_hostname": host,
                "canonical_name": project,
                "src_dir": f"src/{project}",
                "checkout": branch,
                "commit": commit,
                "required": project in required,
            }
        self._write_vars()

    def _branch(self, project: str, override: str) -> str:
        heads = self.state.heads.get(project)
        known = {ref.removeprefix("refs/heads/") for ref in heads or {}} | set(self.state.merged.get(project, {}))
        change = self.spec.change
        for name in (override, change.branch, "master", "main"):
            if name and (name in known or not known):
                return name
        return sorted(known)[0]

    async def playbook(self, book: Playbook) -> Path:
        """The file, in a checkout of its repository: as landed when trusted, as proposed when not."""
        key = (book.project, book.branch, book.trusted)
        if key not in self._books:
            dest = (
                self.root
                / ("trusted" if book.trusted else "untrusted")
                / book.project
                / book.branch.replace("/", "%2F")
            )
            dest.mkdir(parents=True, exist_ok=True)
            await self.checkout.checkout(self.state, book.project, book.branch, dest, speculative=not book.trusted)
            self._books[key] = dest
        path = self._books[key] / book.path
        if not path.is_file() or not path.resolve().is_relative_to(self._books[key].resolve()):
            raise CheckoutError(
                f"{book.project} {book.branch} has no file {book.path}, which job {self.spec.job.name} runs"
            )
        return path

    def variables(self) -> dict[str, Any]:
        """What jobs are told: the `zuul` variable, data of the jobs before, the job's own variables.  JSON."""
        job = self.spec.job
        zuul = {
            **self.spec.zuul,
            "projects": self.projects,
            "items": [
                {"project": {"canonical_name": i.project, "src_dir": f"src/{i.project}"}, "branch": i.branch,
                 "ref": i.ref, "commit_id": i.commit, "message": i.message}
                for i in self.state.chain
            ],
            "executor": {
                "hostname": self.hostname,
                "src_root": str(self.src),
                "log_root": str(self.logs),
                "work_root": str(self.root / "work"),
                "result_data_file": str(self.result),
            },
        }  # fmt: skip
        return {**self.spec.parent_data, **job.vars, **job.extra_vars, "zuul": zuul}

    def _write_vars(self) -> None:
        text = json.dumps(self.variables(), indent=1)
        (self.root / "work" / "vars.json").write_text(text)
        (self.logs / "zuul-info").mkdir(parents=True, exist_ok=True)
        (self.logs / "zuul-info" / "vars.json").write_text(text)

    def readable(self) -> list[Path]:
        """What a job must be able to read, wherever it is: this Python, and the objects its repositories share."""
        shared = [
            Path(line)
            for tree in (*(self.src / name for name in self.projects), *self._books.values())
            if (alternates := tree / ".git/objects/info/alternates").exists()
            for line in alternates.read_text().splitlines()
        ]
        return [self.root, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2], *dict.fromkeys(shared)]

    def environment(self) -> Mapping[str, str]:
        """Nothing of ours but what a job needs."""
        spec, work = self.spec, self.root / "work"
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "HOME": str(work / "home"),
            "TMPDIR": str(work / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "HEADGATE_VARS": str(work / "vars.json"),
            RESULT_VARIABLE: str(self.result),
            "ZUUL_PROJECT": spec.change.project,
            "ZUUL_BRANCH": spec.change.branch,
            "ZUUL_CHANGE": spec.change.topic,
            "ZUUL_PIPELINE": spec.pipeline,
            "ZUUL_BUILD": spec.build,
            "ZUUL_JOB": spec.job.name,
            "ZUUL_TENANT": spec.tenant,
            "ZUUL_SRC_ROOT": str(self.src),
            "ZUUL_LOG_DIR": str(self.logs),
        }
