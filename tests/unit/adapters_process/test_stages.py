"""Test which commits the code of a playbook and its roles comes from, whatever branches a job names."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adapters.process.workspace import Workspace
from headgate.config.model import FrozenJob, JobRole, Playbook, PlaybookSecret, RequiredProject
from headgate.gate.state.change import Change
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.ports.work import CheckedOut
from tests.tiers import share

BRANCHES = ("master", "main", "stable", "old")
PROJECTS = ("h/config", "h/lib", "h/app")


class Recorded:
    """Make work trees that contain the name of their repository."""

    def __init__(self, known: dict[str, Collection[str]]) -> None:
        self.known = known

    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        return self.known[project]

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True
    ) -> CheckedOut:
        (dest / "roles/it").mkdir(parents=True)
        (dest / "play.yaml").write_text("")
        (dest / "roles/it/of").write_text(f"{project} {branch} {'proposed' if speculative else 'landed'}")
        return CheckedOut("1" * 40)


branch = st.sampled_from(BRANCHES)
some = st.sets(branch, min_size=1)
maybe = st.sampled_from(("", *BRANCHES))


def first(known: Collection[str], *wanted: str) -> str:
    return next((name for name in (*wanted, "master", "main") if name in known), min(known))


@pytest.mark.heavy
@settings(max_examples=share(200))
@given(st.booleans(), some, some, some, branch, maybe, maybe, branch)
def test_a_job_chooses_branches_for_its_own_code_and_never_for_trusted_code(
    trusted: bool, config: set[str], lib: set[str], app: set[str],
    of_book: str, override: str, of_lib: str, of_change: str,
) -> None:  # fmt: skip
    known = {"h/config": config | {of_book}, "h/lib": lib, "h/app": app | {of_book}}
    own = "h/config" if trusted else "h/app"
    roles = (JobRole(own, "c", "own", implicit=True), JobRole("h/lib", "c", "lib"))
    job = FrozenJob(
        name="job",
        run=(book := Playbook(own, "c", of_book, "play.yaml", trusted, roles=roles),),
        override_checkout=override,
        required_projects=(RequiredProject("h/lib", "c", of_lib), RequiredProject("h/config", "c", of_lib)),
    )
    change = Change("c", "h/app", of_change, "topic", "1" * 40)
    spec = BuildSpec("b", "set", "t", "check", "i", job, change)
    with TemporaryDirectory() as at:
        workspace = Workspace(Path(at), Path(at), spec, RepoState(), Recorded(known), "here")
        stage = asyncio.run(workspace.stage(book))
        found = [(place / "it/of").read_text() for place in stage.roles]
    if trusted:
        wanted = [f"h/config {of_book} landed", f"h/lib {first(lib, of_book)} landed"]
    else:
        wanted = [f"h/app {of_book} proposed", f"h/lib {first(lib, of_lib, override, of_book, of_change)} proposed"]
    assert found == wanted


def test_roles_stay_where_they_belong_whatever_they_are_called(tmp_path: Path) -> None:
    class Single(Recorded):
        async def checkout(
            self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True
        ) -> CheckedOut:
            (dest / "tasks").mkdir(parents=True)
            (dest / "play.yaml").write_text("")
            return CheckedOut("1" * 40)

    names = ("..", ".", "../../../out", "/out", "good", "a/b")
    roles = tuple(JobRole(f"h/r{n}", "c", name) for n, name in enumerate(names))
    book = Playbook("h/app", "c", "master", "play.yaml", roles=roles)
    spec = BuildSpec("b", "set", "t", "check", "i", FrozenJob(name="j"), Change("c", "h/app", "master", "t", "1"))
    checkout = Single({project: ["master"] for project in ("h/app", *(role.project for role in roles))})
    stage = asyncio.run(Workspace(tmp_path / "b", tmp_path, spec, RepoState(), checkout, "here").stage(book))
    found = [link.relative_to(stage.own).parts[2:] for link in stage.own.rglob("*") if link.is_symlink()]
    assert sorted(found) == [("%2Fout",), ("..%2F..%2F..%2Fout",), ("a%2Fb",), ("good",)]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_playbooks_share_a_home_when_they_are_trusted_alike_and_have_the_same_secrets(tmp_path: Path) -> None:
    spec = BuildSpec("b", "set", "t", "check", "i", FrozenJob(name="j"), Change("c", "h/app", "master", "t", "1"))
    workspace = Workspace(tmp_path / "b", tmp_path, spec, RepoState(), Recorded({"h/app": ["master"]}), "here")
    one, two = (PlaybookSecret("key", project, "c", {"a": project}) for project in ("h/app", "h/lib"))

    async def context(trusted: bool, *secrets: PlaybookSecret) -> Path:
        book = Playbook("h/app", "c", "master", "play.yaml", trusted, secrets=secrets)
        return (await workspace.stage(book)).context.home

    async def homes() -> list[Path]:
        kinds = ((True, ()), (False, ()), (True, (one,)), (False, (one,)), (False, (two,)), (False, (one, two)))
        return [await context(trusted, *secrets) for _ in range(2) for trusted, secrets in kinds]

    found = asyncio.run(homes())
    assert found[:6] == found[6:] and len(set(found)) == 6
    secret = [home.parent for home in found[2:6]]
    (found[3] / "left").write_text("clear")
    workspace.forget()
    assert not any(place.exists() for place in secret) and found[0].is_dir() and found[1].is_dir()
