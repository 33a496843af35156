"""Define the shapes of the API's responses.

Names and units are those of Zuul's API; fields that only Headgate has are marked.
"""

from __future__ import annotations

from typing import Any

import msgspec


class JobShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one job of an item. `elapsed_time` and `remaining_time` are as of the response, and do not affect the
    entity tag; a client can compute them from `start_time` and `estimated_time`."""

    name: str
    dependencies: tuple[str, ...] = ()
    voting: bool = True
    pipeline: str = ""
    uuid: str | None = None
    url: str | None = None
    report_url: str | None = None
    result: str | None = None
    error: str = ""
    """Headgate only."""
    tries: int = 0
    queued: bool = False
    running: bool = False
    """Headgate only."""
    waiting_status: str | None = None
    start_time: float | None = None
    """Seconds since the epoch."""
    end_time: float | None = None
    execute_time: float | None = None
    """When the build was requested, in seconds since the epoch."""
    estimated_time: float | None = None
    """Seconds that similar builds took recently."""
    elapsed_time: int | None = None
    """Milliseconds."""
    remaining_time: int | None = None
    """Milliseconds."""
    canceled: bool | None = None
    """Null until there is a build, like the following fields."""
    paused: bool | None = None
    pre_fail: bool | None = None
    retry: bool | None = None
    snapshotting: bool | None = None
    """Never true: Headgate makes no snapshots of build machines. Clients of Zuul's API expect the field."""


class RefShape(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ref: str
    url: str | None
    project: str
    project_canonical: str
    key: str = ""
    """Identifies the change across its patchsets. Headgate only."""
    change: str | int | None = None
    """Name or number of the change; null for a ref that is not a change. Headgate only."""
    patchset: str | None = None
    """The proposed commit. Headgate only."""
    branch: str
    """Headgate only."""
    topic: str
    """Headgate only."""
    subject: str
    """The first line of the message. Headgate only."""
    owner: str
    """The author's name and address."""
    proposers: tuple[str, ...] = ()
    """People who pushed this patchset, as far as the git server reports them. Headgate only."""
    approvers: tuple[str, ...] = ()
    """People who approved the change under their own names. Headgate only."""


class ItemShape(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    active: bool
    live: bool
    refs: tuple[RefShape, ...]
    zuul_ref: str
    """`Z` followed by the id of the buildset; empty until the item has one."""
    item_ahead: str | None
    items_behind: tuple[str, ...]
    failing_reasons: tuple[str, ...]
    phase: str = ""
    """What the item waits for; empty if its jobs show that. Headgate only."""
    enqueue_time: int
    """Milliseconds since the epoch."""
    remaining_time: int | None = None
    """Milliseconds from the time of the response until the jobs of this item and of the items ahead end."""
    jobs: tuple[JobShape, ...]


class QueueShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    branch: str | None
    """Branch of the queue if it is for one branch; the queue's name then ends with `@` and the branch."""
    window: int
    """0 means no limit."""
    closed: str = ""
    """Who closed the queue, and why: nothing lands from a closed queue. Empty if it is open. Headgate only."""
    heads: tuple[tuple[ItemShape, ...], ...]
    """Chains of items: each item with none ahead begins a new chain."""


class TriggerShape(msgspec.Struct, frozen=True):
    name: str
    driver: str


class PipelineShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    state: str
    """normal | error"""
    closed: str = ""
    """Who closed it, and why, as for a queue. Headgate only."""
    manager: str
    triggers: tuple[TriggerShape, ...]
    trigger_events: int
    result_events: int
    management_events: int
    change_queues: tuple[QueueShape, ...]


class Length(msgspec.Struct, frozen=True):
    length: int


class ProblemShape(msgspec.Struct, frozen=True):
    """Describe a problem, for example of a repository, of the store, of a missing component or of an entry of the
    quarantine."""

    project: str
    """What has the problem: a project; `the store`, while the status shown is the last known one; `no KIND is running`;
    `the tenant file`; or an entry of the quarantine.
    """
    text: str
    since: int
    """Milliseconds since the epoch."""


class ClosingShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a closed queue or pipeline: nothing lands from it."""

    pipeline: str
    queue: str
    """Name of the queue; empty: every queue of the pipeline."""
    reason: str
    who: str
    since: int
    """Milliseconds since the epoch."""


class StateShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe what people have paused or closed in a tenant."""

    trigger_queue_discarding: bool = False
    trigger_queue_paused: bool = False
    result_queue_paused: bool = False
    reason: str | None = None
    info: str | None = None
    loaded: bool
    """Whether the tenant's configuration has been read. Headgate only."""
    closings: tuple[ClosingShape, ...] = ()
    """Headgate only."""


class StatusShape(msgspec.Struct, frozen=True, kw_only=True):
    zuul_version: str
    state: StateShape
    trigger_event_queue: Length
    management_event_queue: Length
    connection_event_queues: dict[str, Length]
    last_reconfigured: int | None
    """Milliseconds since the epoch."""
    pipelines: tuple[PipelineShape, ...]
    problems: tuple[ProblemShape, ...] = ()
    """Headgate only."""
    former_problems: tuple[ProblemShape, ...] = msgspec.field(name="troubles", default=())
    """Deprecated: the same as `problems`."""

    def __post_init__(self) -> None:
        # Clients that were written for the former name still find the value under it.
        msgspec.structs.force_setattr(self, "former_problems", self.problems)


class TenantName(msgspec.Struct, frozen=True):
    name: str
    projects: int
    """Headgate only."""
    queue: int
    """Number of items in its pipelines. Headgate only."""


class ComponentShape(msgspec.Struct, frozen=True, kw_only=True):
    hostname: str
    state: str
    """running | paused | stopping"""
    version: str
    name: str
    """Name with which to pause or stop the component. This and the following fields are Headgate only."""
    pid: int
    accepting: bool
    """Whether it accepts new work."""
    why: str = ""
    """Why it does not accept new work."""
    zone: str = ""
    running: int = 0
    """Number of requests that it is processing."""
    places: int = 0
    """Limit on the requests that it processes concurrently; 0 if it processes none."""
    lacks: tuple[str, ...] = ()
    """Features that its builds lack, in plain English."""
    containers: bool = False
    """Whether it can run jobs in container images."""


class HolderShape(msgspec.Struct, frozen=True):
    buildset_uuid: str
    job_name: str
    ending: bool = False
    """Whether the build was cancelled and keeps its place until its executor has stopped it."""


class HoldersShape(msgspec.Struct, frozen=True):
    count: int
    this_tenant: tuple[HolderShape, ...]
    other_tenants: int


class SemaphoreShape(msgspec.Struct, frozen=True):
    name: str
    is_global: bool = msgspec.field(name="global")
    max: int
    holders: HoldersShape


class JobName(msgspec.Struct, frozen=True):
    name: str
    description: str | msgspec.UnsetType = msgspec.UNSET
    """First line of the description."""
    tags: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    variants: tuple[dict[str, Any], ...] = ()
    """Objects with parent and branches."""


class ProjectName(msgspec.Struct, frozen=True):
    name: str
    connection_name: str
    canonical_name: str
    type: str
    """config | untrusted"""


class ProjectPipeline(msgspec.Struct, frozen=True):
    name: str
    parameters: tuple[dict[str, Any], ...]
    """Parameters of the pipeline: objects with name, type, description, values, default and required."""
    jobs: tuple[tuple[dict[str, Any], ...], ...]
    """For each job name, the job's variants in this project."""


class ProjectConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one stanza of the project, or a template that it uses."""

    source_context: dict[str, Any]
    """Object with project, branch, path and line."""
    is_template: bool
    templates: tuple[str, ...]
    default_branch: str | None
    merge_mode: str | None
    queue_name: str | None
    pipelines: tuple[ProjectPipeline, ...]


class ProjectShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    connection_name: str
    canonical_name: str
    type: str
    branches: tuple[str, ...]
    """Branches with configuration, the default branch first. Headgate only."""
    configs: tuple[ProjectConfig, ...]
    metadata: dict[str, Any]
    """Object with merge_mode, default_branch, is_template and queue_name; empty for a project without configuration."""


class PipelineName(msgspec.Struct, frozen=True):
    name: str
    triggers: tuple[TriggerShape, ...]
    manager: str
    description: str


class ConfigErrorShape(msgspec.Struct, frozen=True, kw_only=True):
    source_context: dict[str, Any]
    error: str
    short_error: str
    severity: str
    name: str


class ConnectionShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    driver: str
    baseurl: str
    canonical_hostname: str
    source: bool = True
    """Whether it has repositories. Headgate only."""
    server: str | msgspec.UnsetType = msgspec.UNSET
    """Host of the forge."""
    repo_cache: str | msgspec.UnsetType | None = msgspec.UNSET
    """Only of GitHub connections."""
    ssh_server: str | msgspec.UnsetType = msgspec.UNSET
    """Only of Gerrit connections."""
    port: int | msgspec.UnsetType = msgspec.UNSET
    """SSH port; only of Gerrit connections."""


class LogFile(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    url: str
