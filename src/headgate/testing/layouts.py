"""Build configurations for plays without parsing any text, and tenants from whole tenant files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.config.dynamic import Judgement, LayoutRequest
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors, Connection, Tenant
from headgate.gate.rules.needs import BY_TOPIC


@dataclass(slots=True)
class PlayLayout:
    """Imitate a configuration: the same jobs for every project, and one shared queue unless stated otherwise."""

    jobs: tuple[FrozenJob, ...]
    fail_fast: bool = False
    queues: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    """Projects that the tenant does not have."""
    circles: bool = False
    """Whether changes may need each other."""
    topics: bool = False
    """Whether changes of one topic need each other."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Job -> the beginning of the paths for which alone it runs."""
    freezes: int = 0

    @property
    def reusing(self) -> bool:
        """Return whether jobs may set `reuse`."""
        return any(job.reuse for job in self.jobs)

    @property
    def semaphores(self) -> Mapping[str, int]:
        return self.limits

    @property
    def shared(self) -> tuple[str, ...]:
        return ()

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: object = None,
    ) -> FrozenGraph:
        self.freezes += 1
        reporters = tuple(job for job in self.jobs if job.type == "reporter")
        regular = tuple(job for job in self.jobs if job not in reporters and self._is_for(job, files))
        return FrozenGraph(regular, self.fail_fast, reporters=reporters)

    def _is_for(self, job: FrozenJob, files: tuple[str, ...] | None) -> bool:
        return files is None or any(file.startswith(self.only.get(job.name, "")) for file in files)

    def queue_of(self, project: str, branch: str, pipeline: str) -> str:
        return self.queues.get(project, "shared")

    def queue_says(self, project: str, branch: str, key: str) -> bool:
        return self.topics if key == BY_TOPIC else self.circles

    def merge_mode(self, project: str, branch: str) -> str:
        return "merge"

    def has(self, project: str) -> bool:
        return project not in self.outside

    def takes_part(self, pipeline: str, project: str, branch: str, ref: str = "") -> bool:
        return project not in self.absent

    def touches_config(self, project: str, files: tuple[str, ...] | None, branch: str = "") -> bool:
        return files is not None and "zuul.yaml" in files

    def config_paths(self, project: str) -> tuple[str, ...]:
        return ("zuul.yaml",)


@dataclass(slots=True)
class PlayLayouts:
    """Judge proposals: the text `broken` is an error, `elsewhere` does not take part, and any other text names a job
    that it adds."""

    landed: PlayLayout
    contents: Mapping[str, Mapping[str, str]]
    waits: bool = False

    def content(self, project: str) -> Mapping[str, str]:
        return self.contents.get(project, {})

    def reuses(self, pipeline: str, project: str, branch: str) -> bool:
        return self.landed.reusing

    def judged(self, request: LayoutRequest) -> Judgement | None:
        """Return the layout of the proposed configuration, or None for a proposal while `waits` is set."""
        if self.waits and request.texts:
            return None
        words = " ".join(text for b in request.texts.values() for files in b.values() for text in files.values())
        if "broken" in words:
            error = ConfigError("Syntax Error", "it is broken", "p", "master", "zuul.yaml", 3)
            return Judgement((error,), FrozenGraph())
        if "elsewhere" in words:
            return Judgement((), FrozenGraph(in_pipeline=False))
        jobs = tuple(FrozenJob(name=word) for word in words.split())
        layout = PlayLayout(jobs) if request.texts else self.landed
        return Judgement(
            (), layout.freeze(request.pipeline, request.project, request.branch, request.ref, request.files)
        )


def parse_tenants(text: str, path: str, connections: Mapping[str, Connection]) -> dict[str, Tenant]:
    """Return the tenants by name, in the order of the file. Raise ConfigErrors if any of them cannot be loaded."""
    found = parse_tenant_file(text, path, connections)
    if found.refused:
        raise ConfigErrors(tuple(error for errors in found.refused.values() for error in errors))
    return found.tenants
