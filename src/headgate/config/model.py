"""Define the records of the configuration that the rest of the program uses. Pure data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import msgspec

from headgate.base.closure import closure
from headgate.base.hints import with_hint
from headgate.config.patterns import Rule


class JobRole(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a repository whose roles a playbook may use."""

    project: str
    """Canonical name."""
    connection: str
    name: str = ""
    """Name of the role when the repository itself is one."""
    implicit: bool = False
    """Whether it is the repository of the job itself, which is added without being listed."""


ANSIBLE = (".yaml", ".yml")
"""Suffixes of the names of playbooks; any other file that is run is a program."""


class PlaybookSecret(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a secret that one playbook may read, still encrypted; `config.files.document.revealed` decrypts it."""

    name: str
    """Name of the variable that holds it."""
    project: str
    """Canonical name of the project whose key decrypts it."""
    connection: str = ""
    data: dict[str, Any] = {}
    """JSON; an encrypted string is `{"!encrypted/pkcs1-oaep": [base64, …]}`."""
    oidc: dict[str, Any] | None = None
    """Settings of a token that is issued instead: algorithm, ttl (seconds), iss, claims."""


class Playbook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a playbook, or any executable file, of a repository."""

    project: str
    """Canonical name of the project whose configuration names it."""
    connection: str
    branch: str
    path: str
    trusted: bool = False
    """Whether it comes from a config-project, so that it always runs as landed, never as proposed."""
    nesting: int = 0
    """Number of variants that had been applied when it was added; smaller is further out."""
    semaphores: tuple[str, ...] = ()
    cleanup: bool = False
    """Whether it also runs when the build is aborted."""
    ignore_result: bool = False
    """Whether it comes from cleanup-run, so that its failure does not count."""
    roles: tuple[JobRole, ...] = ()
    """Roles that it may use, nearest first."""
    secrets: tuple[PlaybookSecret, ...] = ()
    preserve_home_paths: tuple[str, ...] = ()

    @property
    def in_image(self) -> bool:
        """Return whether it runs in the image of its job; only programs of untrusted projects do."""
        return not self.trusted and not self.path.endswith(ANSIBLE)


class JobDependency(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    soft: bool = False


class RequiredProject(msgspec.Struct, frozen=True, omit_defaults=True):
    project: str
    """Canonical name."""
    connection: str
    override_checkout: str = ""


class IncludeVars(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a file of variables, which all variables in the configuration override."""

    name: str
    """Path in the repository."""
    project: str = ""
    """Canonical name; empty for the project of the change (`zuul_project`)."""
    connection: str = ""
    branch: str = ""
    """Branch of the stanza that names it; empty when another project is named."""
    zuul_project: bool = False
    use_ref: bool = True
    """Whether the file is read as the change proposes it; used with zuul_project."""
    required: bool = True
    trusted: bool = False
    """Whether it belongs to a config-project and is therefore always read as landed."""


class ProjectFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an entry of include-projects or exclude-projects."""

    type: str = "name"
    """name | change | item"""
    name: str = ""


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a parameter that people may set when they enqueue an item manually."""

    name: str
    type: str = "string"
    """string | selection | multiple-selection | bool"""
    description: str = ""
    values: tuple[Any, ...] = ()
    default: Any = None
    required: bool = False


class JobSemaphore(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    resources_first: bool = False
    """Whether the executor acquires it once the build has its nodes; otherwise the gate acquires it before it requests
    the build."""


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    name: tuple[str, ...]
    label: str


class NodeGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    nodes: tuple[str, ...]


class Nodeset(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    nodes: tuple[Node, ...] = ()
    groups: tuple[NodeGroup, ...] = ()


ATTEMPTS_MAX = 10
"""Attempts that a job makes at most, however many its configuration allows."""


class FrozenJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one job as it will run, with all matching variants applied."""

    name: str
    description: str = ""
    voting: bool = True
    dependencies: tuple[JobDependency, ...] = ()
    pre_run: tuple[Playbook, ...] = ()
    run: tuple[Playbook, ...] = ()
    post_run: tuple[Playbook, ...] = ()
    roles: tuple[str, ...] = ()
    """Canonical names of the projects that provide its roles."""
    nodeset: Nodeset = Nodeset()
    nodeset_alternatives: tuple[Nodeset, ...] = ()
    """Nodesets that are tried in this order when `nodeset` is not available."""
    pre_timeout_s: int | None = None
    timeout_s: int | None = None
    post_timeout_s: int | None = None
    attempts_max: int = 3
    semaphores: tuple[JobSemaphore, ...] = ()
    required_projects: tuple[RequiredProject, ...] = ()
    override_checkout: str = ""
    vars: dict[str, Any] = {}
    extra_vars: dict[str, Any] = {}
    host_vars: dict[str, dict[str, Any]] = {}
    group_vars: dict[str, dict[str, Any]] = {}
    include_vars: tuple[IncludeVars, ...] = ()
    tags: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    post_review: bool = False
    success_message: str = ""
    failure_message: str = ""
    type: str = "regular"
    """regular | initializer (ahead of all regular ones) | reporter (after the result)"""
    hold_following_changes: bool = False
    deduplicate: bool | str = "auto"
    include_projects: tuple[ProjectFilter, ...] | None = None
    exclude_projects: tuple[ProjectFilter, ...] | None = None
    """None if there is no such filter."""
    secret_exposure: str = "ignore"
    """ignore | redact | fail, for secrets that are found in the log."""
    ansible_version: str = ""
    """Version of Ansible that the job runs with; empty in jobs frozen before every job had one."""
    # The stored name is the former one, because versions run side by side during an upgrade.
    ansible_is_named: bool = msgspec.field(name="ansible_asked", default=False)
    """Whether the job or its tenant names that version; otherwise any installed version will do."""
    ansible_split_streams: bool | None = None
    workspace_scheme: str = "golang"
    workspace_checkout: bool | str = True
    failure_output: tuple[str, ...] = ()
    """RE2 patterns; a line of output that matches one means that the build fails."""
    image: str = ""
    """Name, in a registry, of the image in which its programs run and which is a host of its playbooks."""
    image_file: str = ""
    """Path in the proposed tree of the file from which the image of its programs is built."""
    image_build_name: str = ""
    """Name of an image that the project which attaches the job defines."""
    reuse: bool = False
    """Whether a build that succeeded on the same inputs replaces a new one. Added by Headgate."""
    noop: bool = False
    """Whether it is the built-in job noop, which always succeeds and never goes to an executor."""
    inheritance: tuple[str, ...] = ()
    """Applied variants in order, each as `job project branch file:line`."""
    key: str = ""
    """Id within its graph if the name is not unique because several changes have jobs of that name; otherwise empty."""
    refs: tuple[int, ...] = ()
    """Numbers of the changes of its item for which it runs; empty for the first."""

    @property
    def id(self) -> str:
        """Return the name of the job within its graph."""
        return self.key or self.name

    @property
    def in_image(self) -> str:
        """Return the image of the job for display, or an empty string if it names none or nothing would run in it."""
        books = (*self.pre_run, *self.run, *self.post_run)
        wanted = any(book.in_image or book.path.endswith(ANSIBLE) for book in books)
        return (self.image or self.image_file) if wanted else ""

    @property
    def semaphores_first(self) -> tuple[str, ...]:
        """Return the names of the semaphores that the gate acquires before it requests the build."""
        return tuple(s.name for s in self.semaphores if not s.resources_first)

    @property
    def semaphores_last(self) -> tuple[str, ...]:
        """Return the names of the semaphores that the executor acquires once the build has its nodes."""
        return tuple(s.name for s in self.semaphores if s.resources_first)


# Cached properties need the `__dict__` that `dict=True` gives.
class FrozenGraph(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Hold the jobs of one item, in order; empty when its project takes no part in the pipeline."""

    jobs: tuple[FrozenJob, ...] = ()
    fail_fast: bool = False
    in_pipeline: bool = True
    """Whether any section for this pipeline applies; if not, the result is NO_JOBS, which is not reported."""
    debug: bool = False
    parameters: tuple[Parameter, ...] = ()
    reporters: tuple[FrozenJob, ...] = ()
    """Jobs of type reporter, which run after success has been reported, apart from the other jobs."""
    errors: tuple[ConfigError, ...] = ()
    """Errors; if there are any, the item runs nothing and reports a configuration error."""

    @cached_property
    def by_id(self) -> dict[str, FrozenJob]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def _initializers(self) -> dict[str, JobDependency]:
        return {job.id: JobDependency(job.id, soft=True) for job in self.jobs if job.type == "initializer"}

    def needs(self, job: FrozenJob) -> Iterable[JobDependency]:
        """Return the dependencies of `job`. A regular job also depends on every initializer, softly unless it declares
        that dependency itself."""
        if not self._initializers or job.type != "regular":
            return job.dependencies
        return {**self._initializers, **{d.name: d for d in job.dependencies}}.values()

    @cached_property
    def needed_by(self) -> dict[str, list[tuple[str, bool]]]:
        """Return the jobs that depend on each job, by its id, as (id, whether softly)."""
        found: dict[str, list[tuple[str, bool]]] = {}
        for job in self.jobs:
            for d in self.needs(job):
                found.setdefault(d.name, []).append((job.id, d.soft))
        return found

    @cached_property
    def beneath(self) -> dict[str, int]:
        """Return job id -> all jobs that it depends on, as `closure` does."""
        return closure({job.id: [one.name for one in self.needs(job)] for job in self.jobs})

    @cached_property
    def semaphores(self) -> frozenset[str]:
        """Return the names of the semaphores of all jobs."""
        return frozenset(s.name for job in self.jobs for s in job.semaphores)


class ConfigError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one error of the configuration, with everything needed to find and fix it."""

    name: str
    """Name of the class of error, such as `Pipeline Forbidden`, or `Unknown` for syntax errors."""
    text: str
    """One or two sentences: what is wrong, and what to do."""
    project: str = ""
    branch: str = ""
    path: str = ""
    line: int = 0
    """1-based; 0 if no line applies."""
    snippet: str = ""
    """Lines around the error, with its line marked."""
    severity: str = "error"
    """error | warning"""
    hint: str = ""
    """End of the text that suggests a word; `problem` is the text without it."""

    @property
    def problem(self) -> str:
        return self.text.removesuffix(with_hint("", self.hint))

    def render(self) -> str:
        """Return `project branch path:line: error: text [name]`, and the snippet below it."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        where = " ".join(filter(None, (self.project, self.branch, place)))
        text = ": ".join(filter(None, (where, self.severity, f"{self.text} [{self.name}]")))
        return f"{text}\n{self.snippet}" if self.snippet else text


class TriggerFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one entry of a pipeline's `trigger`: attributes are ANDed, values of one attribute are ORed."""

    connection: str
    events: tuple[str, ...]
    branches: tuple[Rule, ...] = ()
    """Regular expressions, matched at the start: see `config.patterns.matches`."""
    refs: tuple[Rule, ...] = ()
    ignore_deletes: bool = True
    more: dict[str, Any] = {}
    """Other keys of the entry, as the driver defines them (JSON)."""


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    size: int = 20
    floor: int = 3
    ceiling: int | None = None
    increase_type: str = "linear"
    increase_factor: int = 1
    decrease_type: str = "exponential"
    decrease_factor: int = 2


class Pipeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a pipeline of a layout."""

    name: str
    manager: str
    """independent | dependent | serial | supercedent"""
    description: str = ""
    triggers: tuple[TriggerFilter, ...] = ()
    drivers: dict[str, str] = {}
    """Connection that the pipeline names -> its driver, for forges other than plain git."""
    require_approved: tuple[str, ...] = ()
    """Connections for which `require: {approved: true}` is set."""
    require: dict[str, dict[str, Any]] = {}
    """Connection -> requirements, as its driver defines them (JSON); changes of other connections have none."""
    reject: dict[str, dict[str, Any]] = {}
    reporters: dict[str, tuple[str, ...]] = {}
    """success | failure | start | merge-conflict | config-error | no-jobs | dequeue | enqueue | disabled ->
    connections"""
    reports: dict[str, dict[str, tuple[Any, ...]]] = {}
    """Kind of report, as in `reporters` -> connection -> settings of its reports, one or more (JSON)."""
    lands: tuple[str, ...] = ()
    """Connections whose success reporter lands the change: `land` (git), `submit` (gerrit), `merge` (others)."""
    posts: tuple[str, ...] = ()
    """Connections whose reports are posted to message queues."""
    success_message: str = "Build succeeded."
    failure_message: str = "Build failed."
    start_message: str = "Starting {pipeline.name} jobs."
    enqueue_message: str = ""
    merge_conflict_message: str = (
        "Merge Failed.\n\nThis change or one of the changes ahead of it could not be merged "
        "with the current state of its branch. Rebase it and propose it again."
    )
    no_jobs_message: str = ""
    dequeue_message: str = "Build canceled."
    footer_message: str = ""
    precedence: int = 200
    """100 high, 200 normal, 300 low."""
    post_review: bool = False
    dequeue_on_new_patchset: bool = True
    ignore_dependencies: bool = False
    allow_parameters: bool = False
    allow_other_connections: bool = True
    """Whether changes of connections other than those in `connections` may enter."""
    connections: tuple[str, ...] = ()
    """Connections that its triggers, requirements (`require`) and reporters name."""
    disable_after: int | None = None
    rerun_only_failed: bool = False
    """Whether another run of a failed patchset skips jobs that passed, if all their inputs are unchanged. Added by
    Headgate."""
    reuse: bool = False
    """Default of `reuse` for jobs that do not set it. Added by Headgate."""
    window: Window = Window()
    supercedes: tuple[str, ...] = ()
