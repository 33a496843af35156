"""Plan a day from a seed, and generate the configuration of the organisation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import yaml

HOST, CONNECTION, TENANT = "git.example", "local", "day"
HOURS = (2, 2, 2, 2, 2, 3, 4, 6, 8, 10, 10, 9, 8, 10, 11, 11, 10, 8, 6, 5, 4, 3, 3, 2)
"""Relative number of changes that arrive in each hour of the day."""
SHARED = 16
"""One project in this many is in the large shared queue; these projects change more often."""
FAMILY, FAMILIES = 5, 8
"""Size of a family of projects that share a queue, and number of such families."""
STABLE = 3
"""One project in this many has a stable branch."""
POPULAR = 0.6
"""Exponent of popularity: the change rate of the nth project falls with n to this power."""
DEPENDING, FAILING, FLAKY, ABANDONED, DOCS, CONFIGURING, BACKPORTS = 0.10, 0.06, 0.04, 0.03, 0.15, 0.03, 0.10
"""Shares of changes: with a Depends-On footer, wrong until the second patchset, failing once in the gate, abandoned,
only of documentation, of a project's own jobs, and for a stable branch.
"""
CONFIG = "org/config"
"""The project with the pipelines."""
NOTED: dict[str, Any] = {CONNECTION: {}}
SILENT: dict[str, Any] = {CONNECTION: {"note": False}}
HEADS, TAGS = "^refs/heads/.*$", "^refs/tags/.*$"
NEVER = "0 0 29 2 *"
"""Time of pipelines that do not run: only on the 29th of February."""
SHARED_JOBS, TEMPLATES = 100, 25
ARM, ELSEWHERE, TIMED, PROMOTED = 20, 30, 5, 4
"""One project in this many has jobs in check-arm64, in third-party-check, in periodic pipelines, in promote."""

Stanzas = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DayProject:
    name: str
    number: int
    queue: str
    """Name of the shared queue; empty: the project has a queue of its own."""
    stable: bool

    @property
    def canonical(self) -> str:
        return f"{HOST}/{self.name}"


@dataclass(frozen=True, slots=True)
class DayProposal:
    """Describe a change that somebody proposes on that day."""

    number: int
    at: float
    """Arrival time, as a fraction of the day."""
    project: DayProject
    branch: str
    kind: str
    """code, docs or jobs."""
    needs: int | None = None
    """The number of the change that its footer names."""
    fails: bool = False
    """Its first patchset fails in check."""
    flaky: bool = False
    """Its first attempt in the gate fails."""
    abandoned: bool = False
    """Its owner abandons it in the end."""
    later: float = 0.0
    """Time until approval, as a fraction of the longest time that people take."""

    @property
    def topic(self) -> str:
        return f"t{self.number}"

    def message(self, patchset: int, needed: DayProposal | None) -> str:
        """Return the commit message."""
        lines = [f"Change {self.number} of {self.project.name}", "", f"Patchset {patchset}."]
        if needed is not None:
            lines += ["", f"Depends-On: {needed.project.name}/{needed.branch}/{needed.topic}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class DayPlan:
    """Plan a day of this many projects and changes; equal seeds give equal plans."""

    projects_count: int
    changes_count: int
    seed: int = 1

    @cached_property
    def projects(self) -> tuple[DayProject, ...]:
        """Return the projects of the changes, the busiest first; the project with the pipelines is not included."""
        return tuple(
            DayProject(f"org/p{n:04}", n, _queue(n), stable=n % STABLE == 0) for n in range(self.projects_count - 1)
        )

    @cached_property
    def proposals(self) -> tuple[DayProposal, ...]:
        """Return the changes in the order in which they come."""
        chance, found = random.Random(self.seed), list[DayProposal]()
        at = sorted(self._moment(chance) for _ in range(self.changes_count))
        weights = list(accumulate(_rate(project) for project in self.projects))
        for number in range(self.changes_count):
            (project,) = chance.choices(self.projects, cum_weights=weights)
            found.append(self._proposal(chance, number, at[number], project, found))
        return tuple(found)

    @property
    def needed(self) -> dict[int, DayProposal]:
        """Map the number of each change to the change that it needs."""
        return {one.number: self.proposals[one.needs] for one in self.proposals if one.needs is not None}

    @staticmethod
    def _moment(chance: random.Random) -> float:
        (hour,) = chance.choices(range(len(HOURS)), HOURS)
        return (hour + chance.random()) / len(HOURS)

    @staticmethod
    def _proposal(
        chance: random.Random, number: int, at: float, project: DayProject, before: list[DayProposal]
    ) -> DayProposal:
        drawn, later = chance.random(), chance.random()
        backport = project.stable and chance.random() < BACKPORTS
        (kind,) = chance.choices(("docs", "jobs", "code"), (DOCS, CONFIGURING, 1 - DOCS - CONFIGURING))
        wrong = (drawn < FAILING, FAILING <= drawn < FAILING + FLAKY, drawn > 1 - ABANDONED)
        wrong = wrong if kind == "code" else (False, False, wrong[2])
        # Nobody needs a change that is given up: its dependents would wait until the end of the day.
        lately = [one for one in before[-20:] if not one.abandoned]
        needs = chance.choice(lately).number if lately and chance.random() < DEPENDING else None
        branch = "stable/2026" if backport else "master"
        return DayProposal(number, at, project, branch, kind, needs, *wrong, later)


def _queue(number: int) -> str:
    if number % SHARED == 0:
        return "integrated"
    family = number // FAMILY
    return f"family-{family}" if family % 4 == 1 and family < 4 * FAMILIES else ""


def _rate(project: DayProject) -> float:
    return float((project.number + 5) ** -POPULAR)


def tenants(plan: DayPlan) -> str:
    """Return the tenant file."""
    sources = {"config-projects": [CONFIG], "untrusted-projects": [project.name for project in plan.projects]}
    return yaml.safe_dump([{"tenant": {"name": TENANT, "source": {CONNECTION: sources}}}])


def central(periodic: str = NEVER) -> str:
    """Return the configuration of the config project; `periodic`: when the daily jobs run, as a line of cron."""
    stanzas: Stanzas = [*map(_pipeline, _pipelines(periodic)), {"queue": {"name": "integrated"}}]
    stanzas += [{"semaphore": {"name": name, "max": most}} for name, most in (("publish", 40), ("promote", 10))]
    base = {"name": "base", "parent": None, "abstract": True, "timeout": 1800, "pre-run": "pre.yaml"}
    stanzas += [{"job": base}, *({"job": _shared(n)} for n in range(SHARED_JOBS))]
    docs = {"name": "build-docs", "parent": "base", "run": "docs.yaml"}
    publish = {"name": "publish", "parent": "base", "run": "publish.yaml", "semaphores": ["publish"]}
    lint = {"name": "lint", "parent": "base", "run": "lint.yaml"}
    release = {"name": "release", "parent": "base", "run": "release.yaml"}
    promote = {"name": "promote", "parent": "base", "run": "promote.yaml", "semaphores": ["promote"]}
    stanzas += [{"job": job} for job in (docs, publish, lint, release, promote)]
    stanzas += [{"project-template": _template(n)} for n in range(TEMPLATES)]
    return _text(stanzas)


def own(project: DayProject, level: int = 0) -> str:
    """Return the configuration of a project; a change of its jobs has another `level`."""
    name = project.name.rpartition("/")[2]
    return _text([*_jobs(project, name, level), {"project": _section(project, name)}])


def _pipelines(periodic: str) -> Stanzas:
    def one(name: str, event: str, more: dict[str, Any], manager: str = "independent", of: Any = ()) -> Any:
        """Return a pipeline; `of` holds further keys of its trigger."""
        begun = {"name": name, "manager": manager, "trigger": {CONNECTION: [{"event": event, **dict(of)}]}}
        return {**begun, "success": SILENT, "failure": SILENT, **more}

    def timed(name: str, time: str) -> Any:
        return {**one(name, "", {"precedence": "low"}), "trigger": {"timer": [{"time": time}]}}

    feature, production, reviewed = {"branch": "^feature/.*$"}, {"branch": "^production$"}, {"post-review": True}
    low, tagged = {"precedence": "low"}, {**reviewed, "precedence": "high"}
    proposed, approved, updated, merged = "change-proposed", "change-approved", "ref-updated", "change-merged"
    required = {CONNECTION: {"approved": True, "check": {"check": "success"}}}
    landing = {"require": required, "success": {CONNECTION: {"land": True}}, "failure": NOTED}
    return [
        one("check", proposed, {"success": NOTED, "failure": NOTED}),
        one("gate", approved, {**landing, **tagged}, "dependent"),
        one("post", updated, reviewed, of={"ref": HEADS}),
        one("promote", merged, reviewed, "supercedent"),
        one("check-arm64", proposed, low),
        one("third-party-check", proposed, low),
        one("experimental", proposed, low, of=feature),
        one("tag", updated, tagged, of={"ref": TAGS}),
        one("release", updated, tagged, of={"ref": r"^refs/tags/\d+\.\d+\.\d+$"}),
        one("pre-release", updated, tagged, of={"ref": r"^refs/tags/.*(a|b|rc)\d+$"}),
        one("release-post", updated, tagged, of={"ref": "^refs/heads/releases$"}),
        one("release-approval", approved, {"precedence": "high"}, of=feature),
        one("merge-check", proposed, low, of=feature),
        one("opportunistic", proposed, {}, "supercedent", of=feature),
        one("deploy", merged, {}, "serial", of=production),
        timed("periodic", periodic),
        timed("periodic-stable", periodic),
        timed("periodic-weekly", NEVER),
        timed("periodic-monthly", NEVER),
    ]


def _pipeline(body: dict[str, Any]) -> dict[str, Any]:
    return {"pipeline": body}


def _shared(n: int) -> dict[str, Any]:
    return {
        "name": f"shared-{n}",
        "parent": "base",
        "description": "A job that many projects use,\nwith some words about it.\n",
        "run": f"playbooks/shared-{n}.yaml",
        "vars": {"level": n, "packages": ["gcc", "make"]},
        "irrelevant-files": ["^doc/.*$", r"^.*\.md$"],
    }


def _template(n: int) -> dict[str, Any]:
    jobs = ["lint", {"build-docs": {"files": ["^doc/.*$", r"^.*\.md$"]}}, f"shared-{n}"]
    return {
        "name": f"standard-{n}",
        "check": {"jobs": [*jobs, {f"shared-{n + TEMPLATES}": {"voting": False}}]},
        "gate": {"jobs": jobs},
        "post": {"jobs": [{"publish": {"files": ["^doc/.*$"]}}]},
        "release": {"jobs": ["release"]},
    }


def _jobs(project: DayProject, name: str, level: int) -> Stanzas:
    parent = f"shared-{project.number % SHARED_JOBS}"
    common = {"irrelevant-files": ["^doc/.*$"], "vars": {"level": level, "settings": {"flags": ["one", "two"]}}}
    unit = {"name": f"{name}-unit", "parent": parent, "run": "playbooks/unit.yaml", **common}
    older = {"name": f"{name}-unit", "branches": "^stable/.*$", "vars": {"older": True}}
    functional = {"name": f"{name}-functional", "parent": parent, "run": "playbooks/functional.yaml", **common}
    functional["required-projects"] = ["org/p0000", "org/p0001"]
    upgrade = {"name": f"{name}-upgrade", "parent": f"{name}-functional", "timeout": 3600}
    return [{"job": job} for job in (unit, *([older] if project.stable else []), functional, upgrade)]


def _section(project: DayProject, name: str) -> dict[str, Any]:
    first, n = [f"{name}-unit", {f"{name}-functional": {"dependencies": [f"{name}-unit"]}}], project.number
    section: dict[str, Any] = {"templates": [f"standard-{n % TEMPLATES}"]}
    section |= {"queue": project.queue} if project.queue else {}
    section["check"] = {"jobs": [*first, {f"{name}-upgrade": {"dependencies": [f"{name}-unit"], "voting": False}}]}
    section["gate"] = {"jobs": first}
    if n % ARM == 1:
        section["check-arm64"] = {"jobs": [f"{name}-unit"]}
    if n % ELSEWHERE == 1:
        section["third-party-check"] = {"jobs": [f"{name}-upgrade"]}
    if n % TIMED == 1:
        section["periodic"] = {"jobs": [f"{name}-functional"]}
        section |= {"periodic-stable": {"jobs": [f"{name}-functional"]}} if project.stable else {}
    if n % PROMOTED == 1:
        section["promote"] = {"jobs": ["promote"]}
    return section


def _text(stanzas: Stanzas) -> str:
    return yaml.dump(stanzas, Dumper=yaml.CSafeDumper, sort_keys=False)
