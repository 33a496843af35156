"""Run the playbooks of one build in order (pre-run, run and post-run), and determine the build's result."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.adapters.keys.clear import Clear, opened, sealed, sought
from headgate.adapters.process import ansible, joboutput, variables
from headgate.adapters.process.bounds.limits import Exceeded
from headgate.adapters.process.cell import Cell, Command
from headgate.adapters.process.joblog import TOKEN_VARIABLE, EarlySigns, JobLog, PatternsTooLarge
from headgate.adapters.process.phaselimits import POST_TIMES, PhaseLimits, seconds
from headgate.adapters.process.returns import ReturnError, read
from headgate.adapters.process.workspace import BadPlaybook, Stage, Workspace
from headgate.base.tasks import end, run_to_end, unless
from headgate.config.model import FrozenJob, Playbook
from headgate.gate.state.returns import checked
from headgate.ports.secrets import SecretError, Secrets
from headgate.ports.work import CheckoutError, Contact

ALL_LEVELS = 1 << 30
EVALUATE_LIMIT_S = 60.0
"""Time limit for the evaluation of a job's variables."""


@dataclass(frozen=True, slots=True)
class PhaseEnd:
    """Describe how one playbook ended."""

    kind: str
    """good | failed | timeout | cancel | unreachable | unusable | exceeded | conflict | missing (a repository is
    unavailable)"""
    why: str = ""


CANCELLED = PhaseEnd("cancel", "cancelled")


@dataclass(slots=True)
class PlaybookVerdict:
    """Describe the result of the build after the playbooks so far."""

    result: str | None = "SUCCESS"
    """None: the build needs another attempt."""
    error: str = ""
    reached: int = ALL_LEVELS
    """Nesting level at which pre-run failed: post-run playbooks of deeper levels are skipped."""


_RESULTS: dict[str, str | None] = {
    "failed": "FAILURE", "timeout": "TIMED_OUT", "cancel": "CANCELED", "unreachable": None, "unusable": "ERROR",
    "exceeded": "FAILURE", "conflict": "MERGE_CONFLICT", "missing": None,
}  # fmt: skip


@dataclass(slots=True)
class Phases:
    """Run the playbooks of one build, phase by phase: pre-run, run, post-run, cleanup."""

    workspace: Workspace
    joblog: JobLog
    cell: Cell
    playbooks: ansible.Playbooks
    cancel: asyncio.Event
    contact: Contact
    limits: PhaseLimits = field(default_factory=PhaseLimits)
    keys: Secrets | None = None
    handed: Clear = field(default_factory=Clear)
    """Secret data that earlier jobs returned."""
    output: joboutput.JobOutput = field(init=False)
    _early: EarlySigns = field(init=False)
    _cleaned: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when the time of playbooks that clean up after a cancellation is over."""
    _wants_hidden: list[str] = field(init=False, default_factory=list)
    """Returned secrets that are censored; their number is limited, even if the job returns others later."""
    _counts: bool = field(init=False, default=False)
    """Whether a failure of the running playbook fails the build without another attempt."""

    def __post_init__(self) -> None:
        """Prepare the output of the build and the search for early signs.  Raise BadPlaybook, OSError."""
        try:
            self._early = EarlySigns(self.workspace.spec.job.failure_output, self.contact.fails)
        except PatternsTooLarge as large:
            raise BadPlaybook(f"job {self.workspace.spec.job.name} cannot run: {large}") from large
        self.joblog.sift(self._early.sift)
        self.output = joboutput.JobOutput(self.workspace.logs / joboutput.NAME, self.joblog.censor.value)
        self._hides(self.handed.sought)

    async def run_all(self) -> PlaybookVerdict:
        """Run all playbooks and return the verdict. Raise OSError."""
        verdict = await self._before_post()
        self._heed(verdict)
        if verdict.result == "SUCCESS":
            await self._pause(verdict)
        await self._post(verdict)
        self._heed(verdict)
        return verdict

    def _heed(self, verdict: PlaybookVerdict) -> None:
        """Make a build fail after an early sign of failure, so that it neither succeeds nor gets another attempt."""
        if self._early.why and verdict.result in ("SUCCESS", None):
            verdict.result, verdict.error = "FAILURE", self._early.why

    async def _before_post(self) -> PlaybookVerdict:
        job, loop = self.workspace.spec.job, asyncio.get_running_loop()
        end = loop.time() + seconds(job.timeout_s, self.limits.timeout_s)
        # Pre-run uses a part of the job's time, so it never gets more than all of it.
        pre_end = min(end, loop.time() + seconds(job.pre_timeout_s, end - loop.time()))
        for index, book in enumerate(job.pre_run):
            ended = await self._playbook("pre", index, book, pre_end - loop.time(), PlaybookVerdict())
            if ended.kind != "good":
                # Pre-run prepares machines: its failure is more likely theirs than the change's, so try again.
                result = None if ended.kind in ("failed", "timeout") else _RESULTS[ended.kind]
                return PlaybookVerdict(result, ended.why, book.nesting)
        for index, book in enumerate(job.run):
            ended = await self._playbook("run", index, book, end - loop.time(), PlaybookVerdict())
            if ended.kind != "good":
                return PlaybookVerdict(_RESULTS[ended.kind], ended.why)
        return PlaybookVerdict("CANCELED") if self.cancel.is_set() else PlaybookVerdict()

    async def _pause(self, verdict: PlaybookVerdict) -> None:
        """Wait while the jobs that depend on this one run, if it returned `zuul.pause`."""
        try:
            data, secret = read(self.workspace.result)
        except ReturnError:
            return  # reported when the build has ended
        if not checked(data).pause:
            return
        try:
            hidden = await sealed(self.keys, self.workspace.spec, Clear(secret))
        except SecretError as error:
            verdict.result, verdict.error = "FAILURE", str(error)
            return
        self.joblog.say("PAUSED: waiting for the jobs that depend on this one")
        try:
            async with asyncio.timeout(self.limits.pause_s):
                await unless(self.cancel, self.contact.pause(data, hidden))
        except TimeoutError:
            why = f"the jobs that depend on it have not ended after a pause of {self.limits.pause_s:.0f} s"
            verdict.result, verdict.error = "TIMED_OUT", why
            return
        if self.cancel.is_set():
            verdict.result = "CANCELED"
        else:
            self.joblog.say("RESUMED")

    async def _post(self, verdict: PlaybookVerdict) -> None:
        """Run all post-run playbooks despite failures, except those nested deeper than pre-run came.  After a
        cancellation, run only those that clean up, with one time limit together."""
        job = self.workspace.spec.job
        limit_s = min(seconds(job.post_timeout_s, self.limits.post_timeout_s), self.limits.post_timeout_s)
        ending = asyncio.ensure_future(self._end_cleanup(limit_s))
        try:
            await self._post_books(job, verdict)
        finally:
            await end(ending)

    async def _end_cleanup(self, limit_s: float) -> None:
        """Cancel the cleanup this many seconds after the build is cancelled: until then, it holds machines and places
        in semaphores."""
        await self.cancel.wait()
        await asyncio.sleep(limit_s)
        self._cleaned.set()

    async def _post_books(self, job: FrozenJob, verdict: PlaybookVerdict) -> None:
        loop, limit_s = asyncio.get_running_loop(), seconds(job.post_timeout_s, self.limits.post_timeout_s)
        # A job may have any number of these playbooks, and keeps its machines and semaphores until the last one ends.
        end = loop.time() + POST_TIMES * limit_s
        for index, book in enumerate(job.post_run):
            if self._cleaned.is_set():
                verdict.result = "CANCELED"
                self.joblog.say(
                    f"the time to clean up is over; skipped: {', '.join(one.path for one in job.post_run[index:])}"
                )
                return
            if book.nesting > verdict.reached or (verdict.result == "CANCELED" and not book.cleanup):
                continue
            ended = await self._playbook("post", index, book, min(limit_s, end - loop.time()), verdict)
            if ended.kind == "cancel":
                verdict.result = "CANCELED"
            # The logs may be missing, so nobody could examine the result of `run`: give the build another attempt.
            elif ended.kind in ("unreachable", "missing") and not book.ignore_result:
                verdict.result, verdict.error = None, ended.why
            elif ended.kind != "good" and not book.ignore_result and verdict.result == "SUCCESS":
                verdict.result, verdict.error = "POST_FAILURE", ended.why

    async def _playbook(
        self, phase: str, index: int, book: Playbook, limit_s: float, verdict: PlaybookVerdict
    ) -> PhaseEnd:
        """Run a playbook, and log its start and its result."""
        word = f"{phase.upper()}-RUN" if phase != "run" else "RUN"
        trust = "trusted" if book.trusted else "untrusted"
        self.joblog.say(f"{word} START: [{trust} : {book.project}/{book.path}@{book.branch}]")
        # A failure that leads to another attempt must not make the change leave its queue early.
        self._counts = phase != "pre" and not book.ignore_result
        self.joblog.excerpt.begin()
        spec = self.workspace.spec
        retry = verdict.result is None and spec.attempt < spec.job.attempts_max
        phase_variables = variables.phase(phase, index, book, verdict.result, will_retry=retry)
        try:
            # Do not immediately cancel a playbook that cleans up: otherwise resources of the job would remain in
            # clouds.
            ended = await self._held(book, phase_variables, limit_s, self._cleaned if book.cleanup else self.cancel)
        except CheckoutError as error:
            ended = PhaseEnd("conflict" if error.conflict else "missing", str(error))
        except (BadPlaybook, SecretError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            ended = PhaseEnd("unusable", _why_not(book, error))
        except Exceeded as reached:
            ended = PhaseEnd("exceeded", str(reached))
        self.joblog.say(f"{word} END: {ended.why or 'good'} [{book.path}]")
        if ended.kind in ("failed", "timeout", "exceeded") and not book.ignore_result:
            self.joblog.excerpt.settle()
        return PhaseEnd(ended.kind, f"{word.lower()}: {book.path}: {ended.why}" if ended.why else "")

    async def _held(
        self, book: Playbook, phase_variables: dict[str, Any], limit_s: float, cancel: asyncio.Event
    ) -> PhaseEnd:
        """Run a playbook while it holds its semaphores; waiting for them is part of its time. Raise the errors of
        `_run`."""
        if not book.semaphores:
            return await self._run(book, phase_variables, limit_s, cancel)
        loop = asyncio.get_running_loop()
        end, names = loop.time() + limit_s, ", ".join(book.semaphores)
        self.joblog.say(f"WAITING for semaphores: {names}")
        async with self.contact.holding(book.semaphores, cancel, limit_s) as held:
            if held:
                return await self._run(book, phase_variables, end - loop.time(), cancel)
        why = f"it reached its time limit while it waited for {names}"
        return CANCELLED if cancel.is_set() else PhaseEnd("timeout", why)

    async def _run(
        self, book: Playbook, phase_variables: dict[str, Any], limit_s: float, cancel: asyncio.Event
    ) -> PhaseEnd:
        """Stage a playbook, run it, and return how it ended. Raise CheckoutError, BadPlaybook, SecretError, OSError."""
        workspace, loop = self.workspace, asyncio.get_running_loop()
        end = loop.time() + limit_s
        # Stage it only now, so that no earlier playbook of the build runs while these files exist.
        stage = await workspace.stage(book)
        if self.playbooks.unevaluated(stage) and (
            ended := await self._evaluated(min(limit_s, EVALUATE_LIMIT_S), cancel)
        ):
            return ended
        self._early.begins(counts=self._counts, ansible=stage.is_ansible)
        # Decrypt as late as possible, and tell the censors before anything can print the secrets.
        clear = await opened(self.keys, book)
        self._hides(clear.texts)
        more = {"HEADGATE_VARS": str(stage.variables)}
        try:
            if stage.is_ansible:
                command, more = self.playbooks.command(stage, phase_variables, clear, self.handed)
                more = {**more, TOKEN_VARIABLE: self._early.token}
                if workspace.spec.job.ansible_split_streams is False:
                    more[ansible.STREAMS_VARIABLE] = "together"
            else:
                workspace.write_variables(stage, phase_variables, clear, self.handed)
                command = _executable(stage.path)
            status = await self._started(
                stage, command, {**self._environment(stage, phase_variables), **more}, end - loop.time(), cancel
            )
        finally:
            # Do this even after a cancellation: the next playbook may be one that must not have these secrets.
            await self._forget(stage, phase_variables, clear)
        if status == "timeout":
            return PhaseEnd("timeout", f"ended at its time limit ({max(0.0, limit_s):.0f} s)")
        if status == "cancel":
            return CANCELLED
        # An unreachable host is a failure of the infrastructure, and leads to another attempt. A playbook that
        # succeeded has rescued it.
        if stage.is_ansible and status != 0 and self.playbooks.missed(stage):
            return PhaseEnd("unreachable", "a host could not be reached")
        return PhaseEnd("failed", _status(int(status))) if status else PhaseEnd("good")

    async def _forget(self, stage: Stage, phase_variables: dict[str, Any], clear: Clear) -> None:
        """Store the playbook's output and facts, and delete its other files. Raise OSError."""
        try:
            # Hide returned secrets before writing the output, which may contain them.
            secrets, returned = list(clear.texts), self._returned
            self._hides(returned)
            hidden = [*secrets, *self.handed.sought, *returned]
            problems = await run_to_end(asyncio.to_thread(self.output.add, stage, phase_variables, hidden))
            if stage.is_ansible:
                problems += await run_to_end(asyncio.to_thread(self.playbooks.found, stage, secrets))
            for line in problems:
                self.joblog.say(line)
        finally:
            stage.forget()

    def _hides(self, texts: Iterable[str]) -> None:
        """Keep the texts out of reports, and out of the log if the job requests that."""
        texts = list(texts)
        self.joblog.excerpt.censor.learn(texts)
        if self.workspace.spec.job.secret_exposure != "ignore":
            self.joblog.censor.learn(texts)

    @property
    def _returned(self) -> list[str]:
        """Return the strings of the secret data that the job has returned so far, and those that it requested to
        hide.
        """
        with suppress(ReturnError):  # reported when the build has ended
            data, secret = read(self.workspace.result)
            found = (*self._wants_hidden, *Clear(secret).sought, *(checked(data).redactions or ()))
            # Keep earlier ones: a job could return a secret, print it, and then return something else.
            self._wants_hidden = sought(dict.fromkeys(found), times=2)
        return self._wants_hidden

    async def _evaluated(self, limit_s: float, cancel: asyncio.Event) -> PhaseEnd | None:
        """Determine the values of the job's variables. Return the result if that was cancelled, otherwise None. Raise
        BadPlaybook, OSError."""
        self.joblog.say("EVALUATING the variables of the job, for playbooks that are trusted or have secrets")
        stage = self.workspace.aside(ansible.EVALUATE)
        command, more = self.playbooks.evaluation(stage)
        status = await self._started(stage, command, {**self._environment(stage, {}), **more}, limit_s, cancel)
        if status == "cancel":
            return CANCELLED
        if status != 0:
            raise BadPlaybook("the variables of the job cannot be evaluated; see above")
        self.playbooks.learn(stage)
        return None

    def _environment(self, stage: Stage, phase_variables: dict[str, Any]) -> dict[str, str]:
        places = [place / "bin" for place in self._installed(stage)]
        return variables.environment(self.workspace.spec, self.workspace.work, stage.context, phase_variables, places)

    def _installed(self, stage: Stage) -> tuple[Path, ...]:
        return self.playbooks.installed if stage.is_ansible else ()

    def _exposed(self, stage: Stage) -> tuple[Path, ...]:
        """Return the paths that the container sees in the meantime; none while a playbook with rights runs."""
        # The container runs the change's code, which could modify what a playbook with secrets is about to read.
        return () if stage.context.careful else (self.workspace.work, *self.workspace.objects())

    async def _started(
        self, stage: Stage, command: list[str], environment: dict[str, str], limit_s: float, cancel: asyncio.Event
    ) -> int | str:
        """Run the command of a playbook; see `ProcessKeeper.run`."""
        workspace = self.workspace
        request = Command(
            command,
            environment,
            workspace.work if stage.is_ansible else workspace.home(),
            workspace.root,
            # Share by project: one with a hundred builds gets no more processor time than one with a single build.
            f"{workspace.spec.tenant} {workspace.spec.change.project}",
            stage.book.trusted,
            workspace.writable(stage),
            [*workspace.readable(stage), *self._installed(stage)],
            # These files belong to the build's user only during this command.
            private=(stage.variables, stage.secrets, stage.handed),
            secret=stage.context.secret,
            # An image is untrusted: its programs could change what a trusted playbook does.
            contained=not (stage.book.trusted or stage.is_ansible),
            exposed=self._exposed(stage) if stage.is_ansible and self.playbooks.contained else None,
            begins=self.contact.begun,
            plays=stage.is_ansible,
        )
        return await self.cell.run(request, self.joblog, cancel, max(0.0, limit_s))


def _executable(path: Path) -> list[str]:
    """Return the command that runs an executable.  Raise BadPlaybook if there is none."""
    with open(path, "rb") as file:
        first = file.read(200).split(b"\n")[0]
    if os.access(path, os.X_OK):
        # The system would look for an interpreter whose name ends in the carriage return, and say that the script,
        # which everybody sees, does not exist.
        if first.startswith(b"#!") and first.endswith(b"\r"):
            raise BadPlaybook(f"{path.name} has the line ends of Windows, with which no system finds its interpreter")
        return [str(path)]
    if first.startswith(b"#!"):
        return [*first[2:].decode(errors="replace").split(), str(path)]
    raise BadPlaybook(f"{path.name} is neither a playbook (.yaml) nor an executable, and does not begin with #!")


def _why_not(book: Playbook, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{book.path} cannot be started: {error.strerror} ({error.filename})"
    return str(error)


def _status(status: int) -> str:
    """Return a description of an exit status. A negative status means a signal, and so does one above 128, which is how
    shells and bubblewrap report signals."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit status {status}" + (f" ({name})" if name else "")
