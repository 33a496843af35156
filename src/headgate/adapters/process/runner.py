"""Run one build: check out, run playbooks, determine the result, collect logs. Every failure becomes a result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headgate.adapters.ansible.install import AnsibleSupply, CannotInstall
from headgate.adapters.ansible.versions import AnsibleNotInstalled, Environment, Environments
from headgate.adapters.keys.clear import Clear, handed, of_nodes, sealed
from headgate.adapters.metrics.capacity import DiskRoom
from headgate.adapters.nodes.machines import ListedMachine, ListedMachines, NoNode
from headgate.adapters.process.access import Hosts, NoKey, keys, kubeconfig, servers, targets, tokens, without_keys
from headgate.adapters.process.ansible import Playbooks, program_of, shared_config
from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.bounds.watch import Limiter
from headgate.adapters.process.cell import Cells, Reached
from headgate.adapters.process.confinement.users import NoUser, Numbers
from headgate.adapters.process.containers.box import with_container
from headgate.adapters.process.containers.store import ImageSupply, NoImage
from headgate.adapters.process.imagebuild import NotBuilt
from headgate.adapters.process.images import BuildContainer, BuildContainers
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.joboutput import write_inventory, write_manifest
from headgate.adapters.process.network.networks import Fleet, NetworkChoice
from headgate.adapters.process.network.sockets import ReadLog, artifact_builds, reachable_artifacts, serving_files
from headgate.adapters.process.phaselimits import PhaseLimits
from headgate.adapters.process.phases import Phases, PlaybookVerdict
from headgate.adapters.process.processes import ProcessKeeper, kill_left
from headgate.adapters.process.returns import ReturnError, read
from headgate.adapters.process.sandbox import Paths, Sandbox
from headgate.adapters.process.workspace import BadPlaybook, Workspace
from headgate.adapters.process.zygotes.pool import Zygotes
from headgate.adapters.work import ownership
from headgate.adapters.work.collection import collect
from headgate.adapters.work.directory import remove
from headgate.base.tasks import once, run_to_end, unless
from headgate.gate.state.returns import Sealed, checked
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.secrets import SecretError, Secrets
from headgate.ports.work import Checkout, CheckoutError, Contact

log = logging.getLogger("headgate.executor")


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Hold the settings of an executor for its builds."""

    sandbox: str = "auto"
    network: NetworkChoice = field(default_factory=NetworkChoice)
    users: Numbers | None = None
    """User ids of builds if this process is root; None: a default range that nothing else should use."""
    log_size_max_bytes: int = 100_000_000
    files_size_max_bytes: int = 1_000_000_000
    """Total size of a build's other stored files."""
    hostname: str = "localhost"
    keep_work_dir: bool = False
    limits: PhaseLimits = field(default_factory=PhaseLimits)
    bounds: ProcessBounds = field(default_factory=ProcessBounds)
    trusted: Paths = field(default_factory=Paths)
    untrusted: Paths = field(default_factory=Paths)
    hidden: tuple[Path, ...] = ()
    """Paths that no job sees, even below paths that it may read."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the site. JSON."""
    machines: tuple[ListedMachine, ...] = ()
    ansible: Environments | None = None
    """None: the Ansible that is installed with Headgate runs every playbook."""
    manage_ansible: bool = False
    """Whether to install versions of Ansible that jobs request."""
    warm_ansible: bool = True
    """Whether playbooks run, if possible, as copies of a process that has imported Ansible."""
    images: ImageSupply | None = None
    """Images for the programs of jobs; None: no job runs in a container."""


@dataclass(frozen=True, slots=True)
class Work:
    """Hold one build and its controls; see `ports.work`."""

    spec: BuildSpec
    state: RepoState
    cancel: asyncio.Event
    contact: Contact
    begun_s: float
    """Start time by the monotonic clock."""
    using: AsyncExitStack
    """Releases the build's machines."""
    machines: list[str] = field(default_factory=list)  # names of our machines that the build uses


class ProcessRunner:
    """Run builds on this machine; see `ports.work.Runner`."""

    def __init__(
        self,
        root: Path,
        log_root: Path,
        checkout: Checkout,
        settings: RunnerSettings,
        keys: Secrets | None = None,
        fleet: Fleet = tuple,
        read_log: ReadLog | None = None,
    ) -> None:
        """Prepare what all builds share. For `fleet`, see `network.networks`; for `read_log`, see `network.sockets`."""
        self.root, self.log_root, self._checkout, self.settings = root, log_root, checkout, settings
        self._keys, self._read_log = keys, read_log
        self.limiter = Limiter(settings.bounds)
        self.sandbox = Sandbox(
            settings.sandbox,
            trusted=settings.trusted,
            untrusted=settings.untrusted,
            hidden=settings.hidden,
            tmp_size_bytes=settings.bounds.tmp_size_max_bytes,
            # Control groups limit the processes of each build better than a limit per user does.
            processes_max=0 if self.limiter.groups.complete else settings.bounds.processes_max,
        )
        self._keeper = ProcessKeeper(self.limiter)
        self.zygotes = Zygotes(self.limiter, shared_config(), wanted=settings.warm_ansible)
        self.cells = Cells(self._keeper, self.sandbox, settings.users, settings.network, fleet, self.zygotes)
        self._images = BuildContainers(settings.images, settings.bounds, self.sandbox)
        self.machines = ListedMachines(settings.machines)
        self._supply = AnsibleSupply(settings.ansible, manages=settings.manage_ansible)
        self.room = DiskRoom(lambda: (self.root, self.log_root))
        self._held_builds: frozenset[str] = frozenset()
        """Ids of builds whose directories are kept."""

    async def sweep(self, held_builds: Callable[[], Awaitable[Collection[str]]] | None = None) -> None:
        """End the processes and remove the work directories of builds of dead executors. Directories that a living
        executor holds, and those of the builds that `held_builds` returns, stay."""
        await self.cells.begin()
        if not self.root.is_dir():
            return
        for place in self.root.iterdir():
            await self._clear(place, held_builds)

    async def _clear(self, place: Path, held_builds: Callable[[], Awaitable[Collection[str]]] | None = None) -> None:
        """Remove the directory at `place`, unless its owner lives or `held_builds` returns its name. `held_builds` is
        called only once this process holds the place, after a dead owner could have reported that the directory must
        stay."""
        with ownership.left(place) as nobody_s:
            if nobody_s and (held_builds is None or place.name not in await held_builds()):
                await asyncio.to_thread(kill_left, place)  # first, so that nothing writes there
                await self.cells.regain(place)
                await asyncio.to_thread(remove, place)

    async def keep(self, builds: Collection[str], machines: Collection[str]) -> None:
        """Keep the files of these builds, and these machines; see `ports.work.BuildHolding`."""
        gone, self._held_builds = self._held_builds.difference(builds), frozenset(builds)
        await self.machines.keep(machines)
        for build in sorted(gone):
            await self._clear(self.root / build)

    async def runs_images(self) -> bool:
        """Return whether jobs can run in images here; log the reason if they cannot although they should."""
        return await self._images.works()

    async def close(self) -> None:
        """Close everything that builds share; requires that no build runs."""
        await self._supply.close()
        await self._images.close()
        await self.cells.close()
        await self.zygotes.close()
        self._keeper.close()

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        start_ms = int(time.time() * 1000)
        logs = self.log_root / spec.build
        async with AsyncExitStack() as using:
            outcome = await self._held(Work(spec, state, cancel, contact, time.monotonic(), using), logs)
        return replace(outcome.fit(), start_ms=start_ms, end_ms=int(time.time() * 1000), log_path=str(logs))

    async def _held(self, work: Work, logs: Path) -> BuildOutcome:
        root = self.root / work.spec.build
        with ExitStack() as holding:
            try:
                holding.enter_context(ownership.fresh(root))
            except OSError as error:
                return self._no_place(work, error)
            try:
                return await once(self._logged(work, logs))
            finally:  # from here on, nothing writes to the log
                if not self.settings.keep_work_dir and work.spec.build not in self._held_builds:
                    await run_to_end(asyncio.to_thread(remove, root))

    async def _logged(self, work: Work, logs: Path) -> BuildOutcome:
        spec = work.spec
        try:
            logs.mkdir(parents=True, exist_ok=True)
            joblog = JobLog(logs / "job-output.txt", size_max_bytes=self.settings.log_size_max_bytes)
        except OSError as error:
            return self._no_place(work, error)
        try:
            outcome = await self._cancellable(work, joblog)
            await run_to_end(self._hold(work, outcome, joblog))  # a cancelled build may be held, too
            joblog.say(f"RESULT: {outcome.result or 'none: there will be another attempt'}{_colon(outcome.error)}")
            return outcome
        except OSError as error:
            return self._failed_by(work, error)
        finally:
            try:
                joblog.close()
            except OSError as error:
                log.error("build %s: the log is incomplete: %s", spec.build, error)

    async def _hold(self, work: Work, outcome: BuildOutcome, joblog: JobLog) -> None:
        """Keep the build's files if somebody requested that, readable only by this process's user."""
        root = self.root / work.spec.build
        if message := await work.contact.hold(outcome.result, str(root), work.machines):
            joblog.say(message)
        if work.spec.build in self._held_builds:
            root.chmod(0o700)

    async def _cancellable(self, work: Work, joblog: JobLog) -> BuildOutcome:
        """Run the build.  Raise OSError if the log cannot be written; every other failure becomes an outcome."""
        spec = work.spec
        spec_line = f"Build {spec.build} of job {spec.job.name} for {spec.change.id} ({spec.pipeline})"
        joblog.say(f"{spec_line}, attempt {spec.attempt}")
        workspace = Workspace(
            self.root / spec.build, joblog.path.parent, spec, work.state, self._checkout, self.settings.hostname,
            self.settings.variables, await self._artifacts(spec),
        )  # fmt: skip
        try:
            return await self._run_build(workspace, work, joblog)
        except CheckoutError as missing:
            joblog.say(f"The repositories cannot be prepared: {missing}")
            # On a full disk, git fails in many ways; another executor may have room.
            if self.room.gone(work.begun_s, str(missing)):
                return self._disk_full(spec, str(missing))
            return _again(spec, "MERGE_CONFLICT" if missing.conflict else None, str(missing))
        except (BadPlaybook, NoKey, AnsibleNotInstalled, CannotInstall, SecretError) as unusable:
            joblog.say(str(unusable))
            return BuildOutcome(build=spec.build, result="ERROR", error=str(unusable))
        except NotBuilt as failed:
            joblog.say(str(failed))
            return BuildOutcome(build=spec.build, result=failed.result, error=str(failed))
        except NoUser as none:
            joblog.say(str(none))
            return _again(spec, None, str(none))
        except (NoNode, NoImage) as none:
            joblog.say(str(none))
            return BuildOutcome(build=spec.build, result="NODE_FAILURE", error=str(none))
        except OSError as error:
            outcome = self._failed_by(work, error)
            joblog.say(outcome.error)
            return outcome
        except Exception as error:
            log.exception("build %s failed with an unexpected error", spec.build)
            joblog.say(f"The executor failed: {type(error).__name__}: {error}")
            return BuildOutcome(build=spec.build, result="ERROR", error=f"executor: {type(error).__name__}: {error}")

    async def _artifacts(self, spec: BuildSpec) -> dict[bool, list[Any]]:
        """Return the artifacts of earlier builds, with URLs that this build can reach; see `Workspace.artifacts`."""
        await self.cells.begin()
        apart = [trusted for trusted in (True, False) if self._read_log and self.cells.apart(trusted=trusted)]
        return {trusted: reachable_artifacts(spec.zuul, spec.tenant) for trusted in apart}

    async def _run_build(self, workspace: Workspace, work: Work, joblog: JobLog) -> BuildOutcome:
        spec = workspace.spec
        async with AsyncExitStack() as stack:
            boxed: BuildContainer | None = None

            async def ready() -> tuple[Hosts, Environment | None]:
                nonlocal boxed
                ansible = await stack.enter_async_context(self._ansible(workspace, joblog))
                await workspace.prepare()
                for project in workspace.projects.values():
                    joblog.say(f"{project['canonical_name']} {project['checkout']} is at {project['commit']}")
                plays = workspace.plays and not (spec.hosts or (self.settings.machines and spec.job.nodeset.nodes))
                boxed = await stack.enter_async_context(self._images.container(workspace, joblog, work.cancel, plays))
                if spec.hosts:
                    return spec.hosts, ansible
                choice = spec.job.nodeset, *spec.job.nodeset_alternatives
                lent = self.machines.take(*choice, build=spec.build, say=joblog.say)
                taken = await work.using.enter_async_context(lent)
                work.machines.extend(taken.machines)
                if taken.nodeset is not spec.job.nodeset:
                    joblog.say(f"The nodes come from the alternative {taken.nodeset.name or 'without a name'}")
                    workspace.spec = replace(spec, job=replace(spec.job, nodeset=taken.nodeset))
                return taken.hosts, ansible

            prepared = await unless(work.cancel, ready())
            if prepared is None:
                return BuildOutcome(build=spec.build, result="CANCELED")
            hosts, ansible = prepared
            clusters = await of_nodes(self._keys, spec)
            workspace.contexts.access_clusters(kubeconfig(clusters))
            joblog.censor.learn(tokens(clusters))
            joblog.excerpt.censor.learn(tokens(clusters))
            secret = await handed(self._keys, spec)
            earlier = serving_files(self._read_log, artifact_builds(spec.zuul))
            reaching = Reached(
                (*targets(hosts), *servers(clusters)), tuple(keys(hosts, self.settings.variables)), earlier
            )
            cell = await stack.enter_async_context(
                self.cells.opened(spec.build, reaching, boxed.container if boxed else None)
            )
            if workspace.plays:
                cell.expect(program_of(ansible))
            if boxed is not None:
                limit_s = max(0, spec.job.timeout_s or 0) or self.settings.limits.timeout_s
                await self._images.complete(boxed, cell, workspace, joblog, work.cancel, limit_s)
            if workspace.plays and await cell.arm(workspace.root / "agent"):
                workspace.site = without_keys(workspace.site)
                hosts = {name: without_keys(found) for name, found in hosts.items()}
            if boxed is not None and boxed.plays:
                hosts = with_container(hosts)
            playbooks = Playbooks(workspace, hosts, cell.user_name, ansible)
            phases = Phases(
                workspace, joblog, cell, playbooks, work.cancel, work.contact, self.settings.limits, self._keys, secret
            )
            try:
                verdict = await phases.run_all()
            finally:
                await run_to_end(asyncio.to_thread(workspace.forget))
        outcome = await self._outcome(workspace, work, verdict, joblog, playbooks.public_inventory())
        return replace(outcome, image=boxed.description if boxed is not None else "")

    @asynccontextmanager
    async def _ansible(self, workspace: Workspace, joblog: JobLog) -> AsyncIterator[Environment | None]:
        """Hold the Ansible that runs the playbooks. Raise AnsibleNotInstalled, CannotInstall."""
        job = workspace.spec.job
        if not workspace.plays:
            yield None
            return
        async with self._supply.taken(job.ansible_version, requested=job.ansible_is_named, say=joblog.say) as found:
            if found is not None:
                joblog.say(f"{found.name} runs the playbooks")
            yield found

    async def _outcome(
        self, workspace: Workspace, work: Work, verdict: PlaybookVerdict, joblog: JobLog, inventory: dict[str, Any]
    ) -> BuildOutcome:
        spec = workspace.spec
        result, error = verdict.result, verdict.error
        data: dict[str, Any] = {}  # JSON
        retry: bool | None = None
        hidden: Sealed | None = None
        try:
            data, secret = read(workspace.result)
            retry = checked(data).retry
            hidden = await sealed(self._keys, spec, Clear(secret))
        except (ReturnError, SecretError) as wrong:
            joblog.say(f"The data that the job returned is lost: {wrong}")
            result, error = ("FAILURE" if result == "SUCCESS" else result), error or str(wrong)
        # Later jobs and pages show these, so secrets are removed as in the log.
        data, error = joblog.censor.value(data), joblog.censor.value(error)
        excerpt = joblog.excerpt.text()
        if spec.job.secret_exposure == "fail" and joblog.censor.found:
            result, error = "SECRET_EXPOSURE", "the log or the returned data contained a secret, which was removed"
            excerpt = ""
        size_max_bytes = self.settings.files_size_max_bytes
        logs = workspace.work / "logs"
        for line in await run_to_end(asyncio.to_thread(collect, logs, workspace.logs, size_max_bytes)):
            joblog.say(line)
        await run_to_end(asyncio.to_thread(write_inventory, workspace.logs, inventory, joblog.excerpt.censor.value))
        await run_to_end(asyncio.to_thread(write_manifest, workspace.logs))
        # A full disk makes programs fail in any way, which is not the job's fault.
        if result in ("FAILURE", "POST_FAILURE", None) and self.room.gone(work.begun_s):
            return replace(self._disk_full(spec, error), data=data, secret=hidden)
        # The job itself declares that another attempt would not help.
        if result is None and retry is False:
            result = "FAILURE"
        return replace(_again(spec, result, error), data=data, secret=hidden, narrow=spec.job.reuse, excerpt=excerpt)

    def _no_place(self, work: Work, error: OSError) -> BuildOutcome:
        log.error("build %s has no work directory: %s", work.spec.build, error)
        return self._failed_by(work, error)

    def _failed_by(self, work: Work, error: OSError) -> BuildOutcome:
        if self.room.gone(work.begun_s, error):
            return self._disk_full(work.spec, str(error.filename or ""))
        return _again(work.spec, None, str(error) or type(error).__name__)

    def _disk_full(self, spec: BuildSpec, detail: str) -> BuildOutcome:
        """Return the outcome of a build after the disk became full: another attempt, which may find space elsewhere, or
        DISK_FULL after the last attempt."""
        text = f"no space is left on the executor's disk ({self.root} or {self.log_root})"
        result = "DISK_FULL" if spec.attempt >= spec.job.attempts_max else None
        return BuildOutcome(build=spec.build, result=result, error=f"{text}{_colon(detail)}")


def _again(spec: BuildSpec, result: str | None, error: str) -> BuildOutcome:
    """Return the outcome of a build; no result means another attempt, or RETRY_LIMIT after the last one."""
    if result is None and spec.attempt >= spec.job.attempts_max:
        result = "RETRY_LIMIT"
    return BuildOutcome(build=spec.build, result=result, error=error)


def _colon(text: str) -> str:
    return f": {text}" if text else ""
