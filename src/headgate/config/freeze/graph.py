"""Build the job graph of an item: select the jobs that run, and find errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import msgspec

from headgate.config.budgets import Budgets, sized
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob


@dataclass(slots=True)
class JobCandidate:
    """Represent a frozen job that may be in the graph."""

    job: FrozenJob
    optional: bool
    """Whether it runs only if a job that runs needs it, because its own file matchers do not match."""
    forbidden: ConfigError | None
    """Reason why it must not run, reported only if it would run."""
    error: Callable[[str], ConfigError]
    """Function that returns an error at the place where the job is attached."""


class GraphRoom:
    """Track how much of an item's budgets its jobs use."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._jobs = self._edges = self._length_bytes = 0

    def over(self, candidate: JobCandidate) -> str:
        """Add a candidate, and return which limit is then exceeded, or an empty string. Jobs that may still be left out
        do not count toward the number of jobs."""
        most, job = self._budgets, candidate.job
        self._jobs += not candidate.optional
        self._edges += len(job.dependencies)
        self._length_bytes += len(msgspec.json.encode(job))
        if self._jobs > most.jobs_max:
            return f"there are more than {most.jobs_max} jobs for this change ([scheduler] item_jobs_max)"
        if self._edges > most.edges_max:
            return f"its jobs have more than {most.edges_max} dependencies ([scheduler] item_dependencies_max)"
        if self._length_bytes > most.item_max_bytes:
            return f"its jobs come to more than {sized(most.item_max_bytes)} ([scheduler] item_max_bytes)"
        return ""


@dataclass(slots=True)
class Graph:
    candidates: dict[str, JobCandidate] = field(default_factory=dict)

    def resolve(self, defined: Callable[[str], bool]) -> Iterator[ConfigError]:
        """Keep only the jobs that run, and yield the errors of the graph. `defined` returns whether any variant of a
        job exists."""
        self._drop_unneeded()
        wrong = list(self._dependencies(defined))
        yield from wrong
        if not wrong:
            yield from self._circle()
        yield from (c.forbidden for c in self.candidates.values() if c.forbidden is not None)

    @property
    def jobs(self) -> tuple[FrozenJob, ...]:
        return tuple(c.job for c in self.candidates.values() if c.job.type != "reporter")

    @property
    def reporters(self) -> tuple[FrozenJob, ...]:
        return tuple(c.job for c in self.candidates.values() if c.job.type == "reporter")

    def _drop_unneeded(self) -> None:
        wanted = [name for name, c in self.candidates.items() if not c.optional]
        needed = set(wanted)
        while wanted:
            for d in self.candidates[wanted.pop()].job.dependencies:
                # A soft dependency waits for a job that runs anyway, and never makes one run.
                if not d.soft and d.name in self.candidates and d.name not in needed:
                    needed.add(d.name)
                    wanted.append(d.name)
        self.candidates = {name: c for name, c in self.candidates.items() if name in needed}

    def _dependencies(self, defined: Callable[[str], bool]) -> Iterator[ConfigError]:
        for name, candidate in self.candidates.items():
            for d in candidate.job.dependencies:
                if d.name in self.candidates:
                    continue
                if not d.soft:
                    yield candidate.error(f"job {name} depends on {d.name}, which is not run for this change")
                elif not defined(d.name):
                    yield candidate.error(f"job {name} depends on {d.name}, which is not defined")

    def _circle(self) -> Iterator[ConfigError]:
        graph = FrozenGraph(tuple(c.job for c in self.candidates.values()))
        needs = {job.name: [d.name for d in graph.needs(job) if d.name in self.candidates] for job in graph.jobs}
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            turned = _from_first(circle, list(self.candidates))
            text = f"the dependencies of jobs go in a circle: {' -> '.join(turned)}"
            yield self.candidates[turned[0]].error(text)


def _from_first(circle: list[str], order: list[str]) -> list[str]:
    """Turn the circle so that it begins at the job that comes first in the graph."""
    ring = circle[:-1]
    start = ring.index(min(ring, key=order.index))
    turned = ring[start:] + ring[:start]
    return [*turned, turned[0]]
