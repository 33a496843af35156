"""Draw from a seed what happens in a day: which projects there are, which changes come, when, and what is wrong with
them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

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
        """Return what its author writes."""
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
        """Return those that changes are for, the busiest first; the one with the pipelines is not among them."""
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
        """Return change -> the one that it needs."""
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
