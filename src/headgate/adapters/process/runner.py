"""Running one build: check out, pre-run, run, post-run, result (gating-behaviour §14.2)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from headgate.adapters.process import ansible
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.processes import kill_build, run
from headgate.adapters.process.returning import read
from headgate.adapters.process.sandbox import Sandbox
from headgate.adapters.process.workspace import Workspace
from headgate.config.model import Playbook
from headgate.gate.work import BuildOutcome, BuildSpec, RepoState
from headgate.ports.checkout import Checkout, CheckoutError

log = logging.getLogger("headgate.executor")


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    sandbox: str = "auto"
    log_size_max_bytes: int = 100_000_000
    hostname: str = "localhost"
    keep_work_dir: bool = False
    default_timeout_s: int = 10_800
    default_post_timeout_s: int = 1_800


class ProcessRunner:
    """See `ports.runner.Runner`."""

    def __init__(self, root: Path, log_root: Path, checkout: Checkout, settings: RunnerSettings) -> None:
        self.root, self.log_root, self._checkout, self.settings = root, log_root, checkout, settings
        self.sandbox = Sandbox(settings.sandbox)
        self._running: set[str] = set()

    async def sweep(self) -> None:
        """What builds of an earlier life left: processes and work directories."""
        if not self.root.is_dir():
            return
        for left in self.root.iterdir():
            if left.name not in self._running:
                await kill_build(left.name)
                await asyncio.to_thread(shutil.rmtree, left, True)

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event) -> BuildOutcome:
        start_ms = int(time.time() * 1000)
        logs = self.log_root / spec.build
        self._running.add(spec.build)
        try:
            outcome = await self._logged(spec, state, cancel, logs)
        finally:
            self._running.discard(spec.build)
            await kill_build(spec.build)
            if not self.settings.keep_work_dir:
                await asyncio.to_thread(shutil.rmtree, self.root / spec.build, True)
        return replace(outcome, start_ms=start_ms, end_ms=int(time.time() * 1000), log_path=str(logs))

    async def _logged(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, logs: Path) -> BuildOutcome:
        try:
            root = self.root / spec.build
            await asyncio.to_thread(shutil.rmtree, root, True)
            root.mkdir(parents=True)
            logs.mkdir(parents=True, exist_ok=True)
            joblog = JobLog(logs / "job-output.txt", size_max_bytes=self.settings.log_size_max_bytes)
        except OSError as error:
            return _failed_by(spec, error)
        try:
            workspace = Workspace(root, logs, spec, state, self._checkout, self.settings.hostname)
            outcome = await _Run(self, workspace, joblog, cancel).whole()
            joblog.say(f"RESULT: {outcome.result or 'none: it will be tried again'}{_colon(outcome.error)}")
            return outcome
        except OSError as error:
            return _failed_by(spec, error)
        finally:
            try:
                joblog.close()
            except OSError as error:
                log.error("build %s: the log is incomplete: %s", spec.build, error)


class _Run:
    """One build under way."""

    def __init__(self, runner: ProcessRunner, workspace: Workspace, joblog: JobLog, cancel: asyncio.Event) -> None:
        self._runner, self._workspace, self._log, self._cancel = runner, workspace, joblog, cancel
        self._spec, self._job = workspace.spec, workspace.spec.job
        self._count = 0

    async def whole(self) -> BuildOutcome:
        """Raises OSError."""
        spec = self._spec
        self._log.say(
            f"Build {spec.build} of job {spec.job.name} for {spec.change.id} ({spec.pipeline}), attempt {spec.attempt}"
        )
        try:
            await self._workspace.prepare()
        except CheckoutError as missing:
            return self._no_checkout(missing)
        for project in self._workspace.projects.values():
            self._log.say(f"{project['canonical_name']} {project['checkout']} is at {project['commit']}")
        result, error, reached = await self._before_post()
        result, error = await self._post(result, error, reached)
        data = read(self._workspace.result)
        zuul = data.get("zuul")
        if result is None and isinstance(zuul, dict) and zuul.get("retry") is False:
            result = "FAILURE"
        if result is None and spec.attempt >= self._job.attempts_max:
            result = "RETRY_LIMIT"
        return BuildOutcome(build=spec.build, result=result, error=error, data=data)

    def _no_checkout(self, error: CheckoutError) -> BuildOutcome:
        self._log.say(f"The repositories cannot be prepared: {error}")
        last = self._spec.attempt >= self._job.attempts_max
        result = "MERGE_CONFLICT" if error.conflict else "RETRY_LIMIT" if last else None
        return BuildOutcome(build=self._spec.build, result=result, error=str(error))

    async def _before_post(self) -> tuple[str | None, str, int]:
        """Result and error of pre-run and run; the nesting level that pre-run reached."""
        job, loop = self._job, asyncio.get_running_loop()
        end = loop.time() + (job.timeout_s or self._runner.settings.default_timeout_s)
        pre_end = min(end, loop.time() + job.pre_timeout_s) if job.pre_timeout_s else end
        for book in job.pre_run:
            status, error = await self._playbook("PRE-RUN", book, pre_end - loop.time())
            if status in ("timeout", "cancel"):
                return ("TIMED_OUT" if status == "timeout" else "CANCELED"), error, book.nesting
            if status in _NEVER:
                return _NEVER[str(status)], error, book.nesting
            if status != 0:
                return None, error or f"pre-run failed: {book.path}", book.nesting
        for book in job.run:
            status, error = await self._playbook("RUN", book, end - loop.time())
            if status != 0:
                words = {"timeout": "TIMED_OUT", "cancel": "CANCELED", **_NEVER}
                return words.get(str(status), "FAILURE"), error, 1 << 30
        return ("CANCELED" if self._cancel.is_set() else "SUCCESS"), "", 1 << 30

    async def _post(self, result: str | None, error: str, reached: int) -> tuple[str | None, str]:
        """All of them, whatever failed; after a cancel only those that clean up."""
        cancelled = result == "CANCELED"
        for book in self._job.post_run:
            if book.nesting > reached or (cancelled and not book.cleanup):
                continue
            limit_s = self._job.post_timeout_s or self._runner.settings.default_post_timeout_s
            status, why = await self._playbook("POST-RUN", book, limit_s, heed_cancel=not book.cleanup)
            if status == "cancel":
                cancelled, result = True, "CANCELED"
            elif status != 0 and not book.cleanup and result == "SUCCESS":
                result, error = "POST_FAILURE", why or f"post-run failed: {book.path}"
        return result, error

    async def _playbook(
        self, phase: str, book: Playbook, limit_s: float, *, heed_cancel: bool = True
    ) -> tuple[int | str, str]:
        """Exit status, `timeout`, `cancel`, or `unusable`; and what to say of it."""
        self._count += 1
        trust = "trusted" if book.trusted else "untrusted"
        self._log.say(f"{phase} START: [{trust} : {book.project}/{book.path}@{book.branch}]")
        try:
            command, extra = self._command(await self._workspace.playbook(book))
        except (CheckoutError, _Unusable) as error:
            self._log.say(f"{phase} END: {error}")
            return ("conflict" if isinstance(error, CheckoutError) and error.conflict else "unusable"), str(error)
        workspace = self._workspace
        never = asyncio.Event()
        try:
            status = await run(
                self._runner.sandbox.wrap(command, [workspace.root / "work", workspace.logs], workspace.readable()),
                build=self._spec.build,
                environment={**workspace.environment(), **extra},
                directory=workspace.home if workspace.home.is_dir() else workspace.root,
                log=self._log,
                cancel=self._cancel if heed_cancel else never,
                timeout_s=max(0.0, limit_s),
            )
        except (FileNotFoundError, PermissionError) as error:
            self._log.say(f"{phase} END: {error}")
            return "unusable", f"{book.path} cannot be started: {error.strerror} ({error.filename})"
        words = {"timeout": f"ended after its time was up ({limit_s:.0f} s)", "cancel": "cancelled"}
        self._log.say(f"{phase} END: {words.get(str(status), f'exit status {status}')} [{book.path}]")
        return status, words.get(str(status), "")

    def _command(self, path: Path) -> tuple[list[str], dict[str, str]]:
        """Raises _Unusable."""
        if path.suffix in (".yaml", ".yml"):
            program = ansible.program()
            if program is None:
                raise _Unusable(ansible.MISSING)
            return ansible.command(program, self._workspace, path, self._count)
        if os.access(path, os.X_OK):
            return [str(path)], {}
        first = path.read_bytes()[:200].split(b"\n")[0]
        if first.startswith(b"#!"):
            return [*first[2:].decode(errors="replace").split(), str(path)], {}
        raise _Unusable(f"{path.name} is neither a playbook (.yaml) nor executable, and does not begin with #!")


_NEVER = {"unusable": "ERROR", "conflict": "MERGE_CONFLICT"}
"""What trying again would not mend."""


class _Unusable(Exception):
    """A playbook that cannot be run at all."""


def _failed_by(spec: BuildSpec, error: OSError) -> BuildOutcome:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildOutcome(build=spec.build, result="DISK_FULL", error=f"no space left: {error.filename or error}")
    last = spec.attempt >= spec.job.attempts_max
    return BuildOutcome(build=spec.build, result="RETRY_LIMIT" if last else None, error=str(error))


def _colon(text: str) -> str:
    return f": {text}" if text else ""
