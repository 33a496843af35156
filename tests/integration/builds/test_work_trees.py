"""Test the repositories of a build, made by the real merger's engine."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pygit2
import pytest

from headgate.adapters.git import directories, worktree
from headgate.adapters.git.directories import Directories
from headgate.adapters.git.engine import GitConnection, GitEngine
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.process.runner import ProcessRunner, RunnerSettings
from headgate.config.model import FrozenJob, Playbook, RequiredProject
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import BuildSpec, CatAnswer, CatRequest, MergeAnswer, MergeRequest, RepoState
from headgate.ports.work import CheckoutError
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import nothing_happens

from .bench import Alone

API, LIB, DOC = "git.example/api", "git.example/lib", "git.example/group/doc"


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("api", {"a": "1\n2\n3\n4\n5\n", "run": "#!/bin/sh\n"})
    found.create("lib", {"l": "landed\n"})
    found.create("group/doc", {"d": "d\n", "text/deep": "x\n"}, branch="main")
    return found


@pytest.fixture
def git(repositories: Repositories) -> GitEngine:
    return GitEngine(repositories.root / "git", {"local": GitConnection("local", str(repositories.hub), "git.example")})


async def state_of(git: GitEngine, *chain: MergeItem) -> RepoState:
    answer = await git.do(MergeRequest("b", chain, {API: "local"}))
    assert isinstance(answer, MergeAnswer) and answer.state is not None
    return answer.state


def item(project: str, topic: str, commit: str) -> MergeItem:
    ref = f"refs/for/master/{topic}"
    return MergeItem(topic, project, "local", "master", ref, commit, at_s=1_700_000_000, message=topic)


async def test_every_project_is_at_its_speculative_state(repositories: Repositories, git: GitEngine) -> None:
    first = item(API, "first", repositories.propose("api", "first", {"a": "first\n2\n3\n4\n5\n"}))
    lib = item(LIB, "lib", repositories.propose("lib", "lib", {"l": "proposed\n"}))
    own = item(API, "own", repositories.propose("api", "own", {"a": "1\n2\n3\n4\nown\n"}))
    state = await state_of(git, first, lib, own)
    src = repositories.root / "src"
    for project, branch in ((API, "master"), (LIB, "master"), (DOC, "main")):
        await git.checkout(state, project, branch, src / project)
    api = src / API
    assert (api / "a").read_text() == "first\n2\n3\n4\nown\n" and (src / LIB / "l").read_text() == "proposed\n"
    assert (src / DOC / "text/deep").read_text() == "x\n", "a project that nobody changes is as it landed"
    assert run_git("status", "--porcelain", at=api) == "" and (api / "run").stat().st_mode & 0o100
    assert run_git("show", "origin/master:a", at=api).splitlines()[-1] == "5", "the item's own change is not in origin"
    assert run_git("show", "origin/master:a", at=api).splitlines()[0] == "first", "what is ahead of it is"
    assert run_git("branch", "--show-current", at=api) == "master" and run_git("remote", at=api) == ""
    assert run_git("diff", "--stat", "origin/master", at=api).startswith("a | 2 +-")


async def test_a_trusted_checkout_has_the_landed_state(repositories: Repositories, git: GitEngine) -> None:
    state = await state_of(git, item(LIB, "lib", repositories.propose("lib", "lib", {"l": "proposed\n"})))
    await git.checkout(state, LIB, "master", repositories.root / "trusted", speculative=False)
    assert (repositories.root / "trusted/l").read_text() == "landed\n"


async def test_commits_of_a_job_do_not_reach_other_builds(repositories: Repositories, git: GitEngine) -> None:
    state = await state_of(git, item(API, "own", repositories.propose("api", "own", {"a": "own\n"})))
    one, two = repositories.root / "one", repositories.root / "two"
    done = await git.checkout(state, API, "master", one)
    (one / "a").write_text("by the job\n")
    run_git("commit", "-qam", "By the job", at=one)
    assert await git.checkout(state, API, "master", two) == done and (two / "a").read_text() == "own\n"


async def test_trees_that_need_git_itself(repositories: Repositories, git: GitEngine) -> None:
    many = {f"d{n % 7}/f{n}": "x\n" for n in range(1_200)}
    large = item(API, "large", repositories.propose("api", "large", many))
    attributes = {".gitattributes": "*.txt text eol=crlf\n", "read.txt": "one\ntwo\n"}
    filtered = item(LIB, "filtered", repositories.propose("lib", "filtered", attributes))
    state = await state_of(git, large, filtered)
    root = repositories.root / "src"
    await git.checkout(state, API, "master", root / API)
    await git.checkout(state, LIB, "master", root / LIB)
    assert sum(path.is_file() for path in (root / API).glob("d*/*")) == 1_200
    assert (root / LIB / "read.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert run_git("status", "--porcelain", at=root / LIB) == ""


async def test_a_repository_without_its_files_is_as_one_that_was_not_checked_out(
    repositories: Repositories, git: GitEngine
) -> None:
    state = await state_of(git, item(API, "own", repositories.propose("api", "own", {"a": "own\n"})))
    tree = repositories.root / "bare"
    done = await git.checkout(state, API, "master", tree, files=False)
    assert [path.name for path in tree.iterdir()] == [".git"]
    assert run_git("rev-parse", "HEAD", at=tree) == done.commit and run_git("show", "HEAD:a", at=tree) == "own"
    run_git("checkout", "-q", "--force", at=tree)
    assert (tree / "a").read_text() == "own\n" and run_git("status", "--porcelain", at=tree) == ""


async def test_missing_things_are_reported(repositories: Repositories, git: GitEngine) -> None:
    state = await state_of(git)
    with pytest.raises(CheckoutError, match="has no branch nowhere"):
        await git.checkout(state, API, "nowhere", repositories.root / "x")
    with pytest.raises(CheckoutError, match=r"git.example/none"):
        await git.checkout(state, "git.example/none", "master", repositories.root / "y")


async def test_a_repository_that_cannot_be_opened_once_fails_one_build_alone(
    repositories: Repositories, git: GitEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await state_of(git)
    ready, failures = MirrorRepository.ready, ["reading", "branches", "a checkout"]

    async def failing(mirror: MirrorRepository) -> None:
        if failures:
            raise pygit2.GitError(f"too many open files at {failures.pop(0)}")
        await ready(mirror)

    monkeypatch.setattr(MirrorRepository, "ready", failing)
    answer = await git.do(CatRequest(DOC, "local"))
    assert isinstance(answer, CatAnswer) and "too many open files at reading" in answer.error
    with pytest.raises(CheckoutError, match="too many open files at branches"):
        await git.branches(state, DOC)
    with pytest.raises(CheckoutError, match="too many open files at a checkout"):
        await git.checkout(state, DOC, "main", repositories.root / "x")
    assert await git.branches(state, DOC) == {"main"}
    await git.checkout(state, DOC, "main", repositories.root / "x")


async def test_a_required_project_without_the_branch_is_on_its_default_branch(
    repositories: Repositories, git: GitEngine
) -> None:
    state = await state_of(git, item(API, "own", repositories.propose("api", "own", {"a": "own\n"})))
    runner = ProcessRunner(repositories.root / "builds", repositories.root / "logs", git, RunnerSettings("none"))
    script = "#!/bin/sh\ncp $HEADGATE_VARS $ZUUL_LOG_DIR/vars.json; cat ../group/doc/d\n"
    repositories.create("jobs", {"run": script}, branch="main")
    run = Playbook("git.example/jobs", "local", "main", "run", trusted=True)
    job = FrozenJob(name="job", run=(run,), required_projects=(RequiredProject(DOC, "local"),))
    change = Change("local", API, "master", "own", "1" * 40, ref="refs/for/master/own")
    spec = BuildSpec("b", "set", "t", "gate", "i", job, change)
    outcome = await runner.run(spec, state, asyncio.Event(), Alone())
    assert outcome.result == "SUCCESS", outcome
    projects = json.loads(Path(outcome.log_path, "vars.json").read_text())["zuul"]["projects"]
    assert (projects[API]["checkout"], projects[API]["checkout_description"]) == ("master", "zuul branch")
    assert (projects[DOC]["checkout"], projects[DOC]["checkout_description"]) == ("main", "project default branch")


@pytest.mark.parametrize("place", ["work/src", "untrusted"])
async def test_a_build_dropped_during_a_checkout_leaves_nothing_however_often_it_is_cancelled(
    repositories: Repositories, git: GitEngine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As when a session ends while its build is cancelled: writes that have begun are awaited."""
    state = await state_of(git, item(API, "own", repositories.propose("api", "own", {"a": "own\n"})))
    begun, may_go_on, cancel = threading.Event(), threading.Event(), asyncio.Event()
    begin = worktree._begin

    def slowly(*args: Any) -> bool:
        if f"/b/{place}/" in str(args[-1]):
            begun.set()
            may_go_on.wait(DEADLINE_S)
        return begin(*args)

    monkeypatch.setattr(worktree, "_begin", slowly)
    runner = ProcessRunner(repositories.root / "builds", repositories.root / "logs", git, RunnerSettings("none"))
    change = Change("local", API, "master", "own", "1" * 40, ref="refs/for/master/own")
    job = FrozenJob(name="job", run=(Playbook(API, "local", "master", "run"),))
    spec = BuildSpec("b", "set", "t", "gate", "i", job, change)
    running = asyncio.ensure_future(runner.run(spec, state, cancel, Alone()))
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    cancel.set()
    for _ in range(3):
        await nothing_happens(running.done, for_s=0.05)
        running.cancel()
    await nothing_happens(running.done, for_s=0.05)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nothing_happens(lambda: list(runner.root.iterdir()), for_s=0.2)


@pytest.mark.parametrize("place", [worktree, directories])
async def test_a_checkout_writes_nothing_once_it_was_dropped(
    repositories: Repositories, git: GitEngine, monkeypatch: pytest.MonkeyPatch, place: ModuleType
) -> None:
    state = await state_of(git, item(API, "own", repositories.propose("api", "own", {"a": "own\n"})))
    await git.checkout(state, API, "master", repositories.root / "tree")
    begun, may_go_on = threading.Event(), threading.Event()
    name = "_begin" if place is worktree else "_files"
    write = getattr(place, name)

    def slowly(*args: Any) -> Any:
        begun.set()
        may_go_on.wait(DEADLINE_S)
        return write(*args)

    monkeypatch.setattr(place, name, slowly)
    trees = Directories({API: (repositories.root / "tree", "master")}, git) if place is directories else git
    checking = asyncio.ensure_future(trees.checkout(state, API, "master", repositories.root / "dest"))
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    for _ in range(3):
        checking.cancel()
        await nothing_happens(checking.done, for_s=0.05)  # it still writes
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await checking
