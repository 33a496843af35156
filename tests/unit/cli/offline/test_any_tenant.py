"""Test commands on random tenants and proposals: they never crash, and report as new exactly the difference of both
states."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pygit2
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from headgate.cli.main import group

from ...config.places import BASE, Files
from ...config.test_random_tenants import PLAIN_TEXT, SOUND, a_proposal, a_state, a_tenant_text, landed

_ADA = pygit2.Signature("Ada", "ada@example.org", 1_700_000_000, 0)
WHERE = ("inheritance", "files_decision", "description", "variant_description")
"""Return where a frozen job is defined, and the attributes that no file sets."""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Iterator[Path]]:
    with tempfile.TemporaryDirectory() as name:
        yield (Path(name) / str(n) for n in count())


def write(root: Path, files: Files) -> Path:
    """Make a repository for each project in the configuration, with a branch for each of its places."""
    projects: dict[str, dict[str, Mapping[str, str]]] = {}
    for place, content in files.items():
        name, _, branch = place.partition("@")
        projects.setdefault(name, {})[branch or "master"] = (
            {"zuul.yaml": content} if isinstance(content, str) else content
        )
    for name, branches in projects.items():
        repository = pygit2.init_repository(str(root / "forge" / name), bare=True, initial_head="master")
        for branch, texts in branches.items():
            index = pygit2.Index()
            for path, text in texts.items():
                index.add(pygit2.IndexEntry(path, repository.create_blob(text.encode()), pygit2.enums.FileMode.BLOB))
            tree = index.write_tree(repository)
            repository.create_commit(f"refs/heads/{branch}", _ADA, _ADA, "All", tree, [])
    return root


def run(root: Path, repos: Path, *words: str) -> Any:
    """Return the output of the command as JSON."""
    given_ = ["--tenant-config", str(root / "tenants.yaml"), "--repos", str(repos), "--json"]
    done = CliRunner().invoke(group, [*words, *given_])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1), done.stderr
    return json.loads(done.stdout.replace(str(repos), "DIR"))


def wrong(checked: Any) -> set[tuple[str, str, str]]:
    """Return the files with errors; of several errors with one cause in one line, only one is reported."""
    return {(one["project"], one["branch"], one["path"]) for tenant in checked.values() for one in tenant["errors"]}


def graphs(frozen: Any) -> dict[tuple[str, str, str], Any]:
    """Return the files with jobs."""
    return {
        (graph["pipeline"], graph["project"], graph["branch"]): [
            {key: value for key, value in job.items() if key not in WHERE} for job in graph["jobs"]
        ]
        for graph in frozen
        if graph["jobs"]
    }


@pytest.mark.long
@pytest.mark.heavy
@settings(
    max_examples=3,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # shrinking an example takes too long
    suppress_health_check=list(HealthCheck),
)
@given(a_tenant_text(), a_state, st.lists(a_proposal, min_size=1, max_size=3))
@example(PLAIN_TEXT, SOUND, [{"app": SOUND["app"].replace("run: a.yaml", "run: b.yaml")}])
@example(
    PLAIN_TEXT, SOUND, [{"lib": SOUND["lib"].replace("parent: unit", "parent: gone")}, {"app@stable": SOUND["app"]}]
)
@example(PLAIN_TEXT, SOUND, [{"ops": "- job: {name: lint, run: x.yaml}\n"}, {"app": "- ["}])
def test_commands_succeed_in_any_tenant_and_report_new_errors(
    scratch: Iterator[Path], tenant: str, state: Files, chain: list[Files]
) -> None:
    root = next(scratch)
    proposed = {place: content for proposal in chain for place, content in proposal.items()}
    state = {**dict.fromkeys(("more", "app", "lib", "site/ansible-role-x"), ""), **state}  # all have a repository
    before = write(root / "before", landed(state))
    after = write(root / "after", landed({**state, **proposed}))
    (root / "tenants.yaml").write_text(tenant)

    old, new = (wrong(run(root, repos, "check")) for repos in (before, after))
    errors = wrong(run(root, after, "check", "--new-since", str(before)))
    assert new - old <= errors <= new
    assert wrong(run(root, after, "check", "--new-since", str(after))) == set()

    here = {place: content for place, content in proposed.items() if "@" not in place}
    if not here:
        return
    own = here.get("ops")
    if own is not None:
        here["ops"] = BASE + (own if isinstance(own, str) else "\n".join(own.values()))
    overlay = write(root / "overlay", here)
    shown = run(root, before, "freeze", "--diff", str(overlay))["acme"]["graphs"]
    changed = {(graph["pipeline"], graph["project"], graph["branch"]) for graph in shown}
    master = write(
        root / "master", landed({**state, **{p: content for p, content in proposed.items() if "@" not in p}})
    )
    frozen = [graphs(run(root, repos, "freeze", "--all")) for repos in (before, master)]
    differing = {key for key in (frozen[0] | frozen[1]) if frozen[0].get(key) != frozen[1].get(key)}
    assert differing <= changed
