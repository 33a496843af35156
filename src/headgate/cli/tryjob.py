"""Implement `headgate try`: run one job on local work trees, before anything is pushed."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from headgate.adapters.git.command import GitError, check_git
from headgate.adapters.git.directories import Directories
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.keys.keystore import ENCRYPTED
from headgate.adapters.process.joblog import follow
from headgate.adapters.process.returns import parse
from headgate.adapters.process.runner import ProcessRunner
from headgate.base.errors import UserError
from headgate.base.files import reason, text_of
from headgate.base.hints import nearest, with_hint
from headgate.base.ids import fresh
from headgate.base.tasks import run_until
from headgate.base.texts import plain_json
from headgate.cli.jobs import runner_settings
from headgate.cli.launch.fleet import named
from headgate.cli.offline.graphs import GraphPlace, frozen, places
from headgate.cli.offline.othertrees import ProjectWorkTree, laid_over, work_trees_of
from headgate.cli.offline.reader import LoadedTenant, ReadingOptions
from headgate.cli.offline.report import as_text
from headgate.cli.resources import connections
from headgate.cli.settings import Settings, find, read
from headgate.cli.terminal.say import say, style
from headgate.config.files.checks import deep_plain
from headgate.config.files.document import load
from headgate.config.files.source import Wrong
from headgate.config.model import FrozenJob, PlaybookSecret
from headgate.config.operator.model import ConfigErrors
from headgate.gate.builds.report import duration
from headgate.gate.builds.start import limits, variables
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet, Item
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.ports.secrets import SecretError
from headgate.recipes.calls import call
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.executor import Executor, ExecutorSettings
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

Pieces = tuple[str, ...]
"""Encrypted pieces of a value, the key for looking up its plain text."""


@click.command()
@click.argument("job")
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--tenant", metavar="NAME", help="The tenant; optional if there is only one.")
@click.option(
    "--tree",
    "given",
    multiple=True,
    metavar="[PROJECT=]DIR",
    help="A work tree to use for its project; repeatable. Default: the current one.",
)
@click.option("--project", help="The project whose job to run. Default: the project of the first work tree.")
@click.option(
    "--branch",
    help="The target branch of the simulated change. Default: the checked-out branch, if Headgate knows it.",
)
@click.option("--pipeline", help="The pipeline. Default: the first one in which the project runs the job.")
@click.option(
    "--data", multiple=True, metavar="KEY=VALUE", help="A value that an earlier job would return, as JSON; repeatable."
)
@click.option(
    "--secrets",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A YAML file with the plain text of encrypted secrets: NAME: {KEY: VALUE}, as the job's playbooks see them.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the work directory and the logs in this directory.")
def command(
    job: str,
    config: str | None,
    tenant: str | None,
    given: tuple[str, ...],
    project: str | None,
    branch: str | None,
    pipeline: str | None,
    data: tuple[str, ...],
    secrets: Path | None,
    keep: Path | None,
) -> None:
    """Run JOB now on your work trees, with all uncommitted changes, and show its log.

    The configuration in the work trees applies. The job runs in the same sandbox as on executors; if that is not
    possible, the command prints a warning. For all other repositories, it uses their branch heads. Jobs that JOB
    depends on do not run. Unencrypted secrets work unchanged; supply encrypted ones with --secrets. The exit status is
    0 if the job succeeded, and 1 otherwise.
    """
    check_git()
    settings = read(find(config))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        loaded = _tenant(ReadingOptions(config, None, None, tenant))
        found = asyncio.run(work_trees_of(given or (".",), loaded, connections(settings), branch))
        loaded = laid_over(loaded, found)
        place, frozen_job = _job(loaded, job, pipeline, project or found[0].source.project, found, branch)
    except ConfigErrors as refused:
        say("\n\n".join(as_text(refused.errors)), err=True)
        sys.exit(1)
    except GitError as error:
        raise UserError(str(error)) from error
    if frozen_job.noop:
        raise UserError(f"{job} runs nothing")
    opened = given_secrets(frozen_job, secrets)
    # The job may fail only because these data are missing.
    if frozen_job.dependencies and not data:
        names = ", ".join(d.name for d in frozen_job.dependencies)
        say(f"{job} depends on {names}: pass data that they would return with --data KEY=VALUE", err=True)
    try:
        returned = parse(list(data))
    except ValueError as error:
        raise UserError(f"--data: {error}") from error
    spec = replace(_spec(loaded, place, frozen_job, found), parent_data=returned)
    with tempfile.TemporaryDirectory(prefix="headgate-try-") as name:
        outcome = asyncio.run(_run(settings, spec, found, opened, keep or Path(name), keep is not None))
    _tell(spec, outcome, keep)
    sys.exit(0 if outcome.result == "SUCCESS" else 1)


def _tenant(given: ReadingOptions) -> LoadedTenant:
    """Return the only tenant. Raise ConfigErrors, UserError."""
    tenants = given.tenants()
    if len(tenants) > 1:
        raise UserError(f"choose a tenant with --tenant: {', '.join(tenants)}")
    return next(iter(tenants.values()))


def _job(
    loaded: LoadedTenant,
    name: str,
    pipeline: str | None,
    project: str,
    found: list[ProjectWorkTree],
    branch: str | None,
) -> tuple[GraphPlace, FrozenJob]:
    """Find the job and its graph. Raise ConfigErrors, UserError."""
    source = loaded.tenant.find(project)
    own_branch = next((tree.branch for tree in found if source and tree.source.project == source.project), branch)
    known: dict[str, list[str]] = {}
    for place in places(loaded, pipeline, project, own_branch):
        graph = frozen(loaded, place, None)
        # With errors, the graph would not run any job.
        if graph.errors:
            raise ConfigErrors(graph.errors)
        for job in graph.jobs:
            if job.name == name:
                return place, job
            known.setdefault(job.name, []).append(place.pipeline)
    where = f" in {pipeline}" if pipeline else ""
    jobs = ", ".join(f"{job} ({', '.join(pipelines)})" for job, pipelines in known.items()) or "none"
    text = with_hint(f"{project} runs no job {name!r}{where}", nearest(name, known))
    raise UserError(f"{text}\nIts jobs are: {jobs}")


def _spec(loaded: LoadedTenant, place: GraphPlace, job: FrozenJob, found: list[ProjectWorkTree]) -> BuildSpec:
    source, branch = place.project, place.branch
    commit = next((tree.commit for tree in found if tree.source.project == source.project), "")
    change = Change(
        source.connection, source.project, branch, "try", commit, ref=f"refs/for/{branch}/try", message="A try"
    )
    item, buildset = Item("try", change), BuildSet(fresh())
    build = Build(fresh(), job.name, voting=job.voting)
    pipeline = loaded.layout.pipelines[place.pipeline]
    return BuildSpec(
        build=build.id,
        buildset=buildset.id,
        tenant=loaded.tenant.name,
        pipeline=pipeline.name,
        item=item.id,
        # The user wants to see the first failure, not the result of the third attempt.
        job=replace(job, attempts_max=1),
        change=change,
        zuul=variables(item, buildset, job, build, loaded.tenant.name, pipeline),
        semaphores=limits(job, loaded.layout),
        state=RepoState(connections={p.project: p.connection for p in loaded.tenant.projects}),
    )


async def _run(
    settings: Settings, spec: BuildSpec, found: list[ProjectWorkTree], secrets: GivenSecrets, place: Path, keep: bool
) -> BuildOutcome:
    # Use an absolute path, because the build's programs run in other directories.
    place = place.absolute()
    engine = GitEngine(place / "git", connections(settings))
    checkout = Directories({tree.source.project: (tree.path, tree.branch) for tree in found}, engine)
    how = dataclasses.replace(runner_settings(settings, socket.gethostname()), keep_work_dir=keep)
    # As on an executor, the job must not reach the machines that run Headgate (`fleet`).
    runner = ProcessRunner(place / "builds", place / "logs", checkout, how, secrets, fleet=lambda: named(settings))
    if how.sandbox == "none":
        say(f"{settings.path}: [executor] sandbox = none: the job can read and write everything that you can", err=True)

    def copy(chunk: bytes) -> None:
        sys.stdout.buffer.write(chunk)
        # Show the log while the job runs, even through a pipe.
        sys.stdout.buffer.flush()

    return await run(spec, runner, copy)


async def run(spec: BuildSpec, runner: ProcessRunner, say: Callable[[bytes], None]) -> BuildOutcome:
    """Run a build, and pass its log to `say` while it runs. A cancellation also ends the build's processes."""
    # Use the real executor, with an in-memory store, so that the job takes the same code paths as in production.
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, Map().path), lambda: int(time.time() * 1000))
    executor, stop, answered = Executor(context, runner, ExecutorSettings(1)), asyncio.Event(), asyncio.Event()
    answers: list[bytes] = []

    async def ask() -> None:
        await context.mirror.ready()
        async with store.session("try") as session:
            meta = {"tenant": spec.tenant, "pipeline": spec.pipeline, "job": spec.job.name, "change": spec.change.id}
            params = msgspec.json.encode(spec)
            answers.append(await call(context.builds, session, params, precedence=100, meta=meta))
        answered.set()

    async def tell() -> None:
        # `follow` ends once the answer has arrived and the file is read completely, so that no line is lost.
        async for chunk in follow(runner.log_root / spec.build / "job-output.txt", answered.is_set):
            say(chunk)
        stop.set()

    try:
        await run_until(stop, context.mirror.run(), executor.membership.serve(executor.run, stop), ask(), tell())
    finally:
        # Also on cancellation: otherwise the build's processes would outlive the command.
        await runner.close()
    return msgspec.json.decode(answers[0], type=BuildOutcome)


def _tell(spec: BuildSpec, outcome: BuildOutcome, keep: Path | None) -> None:
    good = outcome.result == "SUCCESS"
    took = duration(outcome.end_ms - outcome.start_ms)
    say(style(f"{spec.job.name}: {outcome.result} in {took}", fg="green" if good else "red", bold=True), err=True)
    if outcome.error:
        say(outcome.error, err=True)
    if outcome.data:
        say(f"returned {plain_json(msgspec.json.encode(outcome.data).decode())}", err=True)
    if outcome.secret is not None:
        say("returned secret data, which is not shown", err=True)
    if keep is not None:
        say(f"logs: {outcome.log_path}", err=True)


class GivenSecrets:
    """Implement `ports.secrets.Secrets` without a key: the user supplies the plain texts."""

    def __init__(self, clear: Mapping[tuple[str, Pieces], str]) -> None:
        self._clear = clear

    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """Return the data with encrypted values replaced by their given plain texts; see `ports.secrets`."""
        return self._opened(project, data)

    async def sealed(self, connection: str, project: str, plain: bytes) -> Sealed:
        """Return an empty value: no later job will read it."""
        return Sealed(connection, project)

    async def unsealed(self, sealed: Sealed) -> bytes:
        """Raise SecretError: there is no earlier job; see `ports.secrets`."""
        raise SecretError("`headgate try` runs no earlier job that could have returned this secret")

    def _opened(self, project: str, data: Any) -> Any:
        if (pieces := _pieces(data)) is not None:
            if (project, pieces) not in self._clear:
                raise SecretError(f"a secret of {project} is encrypted, and --secrets does not supply its value")
            return self._clear[project, pieces]
        if isinstance(data, dict):
            return {key: self._opened(project, value) for key, value in data.items()}
        return [self._opened(project, value) for value in data] if isinstance(data, list) else data


def given_secrets(job: FrozenJob, path: Path | None) -> GivenSecrets:
    """Return the secrets that the job's playbooks read. Raise UserError for missing secrets, and for secrets that no
    playbook reads."""
    contents = _read(path) if path is not None else {}
    # Tokens of an OpenID provider exist only at run time, so the user cannot supply them.
    wanted = {s.name: s for book in (*job.pre_run, *job.run, *job.post_run) for s in book.secrets if s.oidc is None}
    if unknown := [name for name in contents if name not in wanted]:
        known = ", ".join(wanted) or "none"
        text = with_hint(f"job {job.name} has no secret {unknown[0]!r}", nearest(unknown[0], wanted))
        raise UserError(f"{path}: {text}; its secrets are: {known}")
    clear: dict[tuple[str, Pieces], str] = {}
    missing: list[str] = []
    for book in (*job.pre_run, *job.run, *job.post_run):
        for secret in book.secrets:
            for keys, pieces in _encrypted(secret.data):
                value = _value(contents.get(secret.name), keys)
                if value is None:
                    missing.append(".".join((secret.name, *keys)))
                else:
                    # Use the ciphertext as the key: the runner passes the encrypted value without the secret's name.
                    clear[_short(secret), pieces] = _text(value, path, secret.name, keys)
    if missing:
        raise UserError(_lacking(job, list(dict.fromkeys(missing)), path))
    return GivenSecrets(clear)


def _lacking(job: FrozenJob, missing: list[str], path: Path | None) -> str:
    first, _, rest = missing[0].partition(".")
    names = ", ".join(missing)
    where = f"add it to {path}" if path is not None else "supply their values with --secrets FILE"
    return f"secrets of job {job.name} are encrypted: {names}; {where}, such as\n  {first}: {{{rest or 'data'}: …}}"


def _read(path: Path) -> dict[str, Any]:
    """Read the secrets in a file. Raise UserError."""
    try:
        found = deep_plain(load(text_of(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error
    except Wrong as wrong:
        raise UserError(f"{path}:{wrong.line}: {wrong.text}") from wrong
    if found is None or isinstance(found, dict):
        return found or {}
    raise UserError(f"{path}: this must be a mapping of secrets to their values, such as\n  pypi: {{token: …}}")


def _value(value: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if isinstance(value, list):
            # Keys of lists are their positions.
            value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any, path: Path | None, name: str, keys: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise UserError(f"{path}: {'.'.join((name, *keys))} must be a string; put it in quotes")
    return value


def _short(secret: PlaybookSecret) -> str:
    """Return the project's name within its connection."""
    return secret.project.partition("/")[2]


def _pieces(data: Any) -> Pieces | None:
    """Return the encrypted pieces of a value, or None if it is not encrypted."""
    return tuple(data[ENCRYPTED]) if isinstance(data, dict) and list(data) == [ENCRYPTED] else None


def _encrypted(data: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Pieces]]:
    """Yield the path and the pieces of every encrypted value."""
    if (pieces := _pieces(data)) is not None:
        yield keys, pieces
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _encrypted(value, (*keys, str(key)))
