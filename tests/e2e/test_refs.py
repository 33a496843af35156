"""Test with real pushes that tags, branches and other refs start pipelines, and are restarted and stopped by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.repositories import Repositories, run_git
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import Headgate
from .test_by_hand import say

API = "code/api"
PROJECT = f"git.example/{API}"
TELL = """#!/bin/sh
mkdir -p logs
echo "tag=$ZUUL_TAG branch=$ZUUL_BRANCH ref=$ZUUL_REF new=$ZUUL_NEWREV old=$ZUUL_OLDREV head=$(git rev-parse HEAD)"
git describe --exact-match 2>&1
while test -e "$ZUUL_SRC_ROOT/git.example/code/api/HOLD"; do sleep 0.1; done
true
"""
CONFIG = (
    PIPELINES
    + """
- pipeline:
    name: release
    manager: independent
    post-review: true
    allow-parameters: true
    trigger: {local: [{event: ref-updated, ref: ^refs/tags/}]}
    success: {local: {}}
    failure: {local: {}}
    merge-conflict: {local: {}}
    dequeue: {local: {}}
    start: {local: {}}
- pipeline:
    name: post
    manager: supercedent
    trigger: {local: [{event: ref-updated, ref: ^refs/heads/}]}
    success: {local: {}}
- pipeline:
    name: promote
    manager: independent
    trigger: {local: [{event: change-merged}]}
    success: {local: {}}
- pipeline:
    name: odd
    manager: independent
    trigger: {local: [{event: ref-updated, ref: ^refs/deploy/, ignore-deletes: false}]}
    success: {local: {}}
- job: {name: tell, run: jobs/tell}
- job: {name: stable, run: jobs/tell, branches: ^stable}
- project:
    name: ^code/.*
    release:
      parameters: [{name: where, type: selection, values: [here, there], default: here}]
      jobs: [tell, stable]
    post: {jobs: [tell]}
    promote: {jobs: [tell]}
    odd: {jobs: [tell]}
"""
)


@pytest.fixture
def headgate(tmp_path: Path) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": CONFIG, "jobs/unit": "#!/bin/sh\n", "jobs/tell": TELL})
    repositories.create(API, {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    tag(repositories, "before", "-m", "It was there before Headgate was.")
    running = Headgate(repositories, TENANTS)
    running.start()
    wait_for("its refs were looked at", lambda: "has no ref" in refs(running, "enqueue", "refs/tags/nosuch")[1])
    yield running
    running.stop()


def tag(repositories: Repositories, name: str, *words: str) -> None:
    run_git("tag", "-f", *words, name, at=repositories.work(API))
    run_git("push", "-q", "-f", "origin", f"refs/tags/{name}", at=repositories.work(API))


def push(headgate: Headgate, *specs: str) -> None:
    run_git("push", "-q", "-f", "origin", *specs, at=headgate.repositories.work(API))


def commit(headgate: Headgate, files: dict[str, str]) -> str:
    headgate.repositories.write(API, files)
    run_git("commit", "-q", "-m", "direct", at=headgate.repositories.work(API))
    return run_git("rev-parse", "HEAD", at=headgate.repositories.work(API))


def ended(headgate: Headgate, pipeline: str, ref: str = "") -> list[dict[str, Any]]:
    found = headgate.get(f"/api/tenant/example/buildsets?complete=true&pipeline={pipeline}")
    return [one for one in found if ref in ("", one["refs"][0]["ref"])][::-1]


def note(headgate: Headgate, at: str, *words: str) -> str:
    def note_with() -> str:
        found = headgate.repositories.note(API, at)
        return found if all(word in found for word in words) else ""

    return str(wait_for(f"a note says {words}", note_with))


def log(headgate: Headgate, buildset: dict[str, Any], job: str = "tell") -> str:
    found = headgate.get(f"/api/tenant/example/buildset/{buildset['uuid']}")
    build = next(one["uuid"] for one in found["builds"] if one["job_name"] == job)
    return (headgate.root / "state/logs" / build / "job-output.txt").read_text()


def refs(headgate: Headgate, verb: str, *words: str, pipeline: str = "release") -> tuple[int, str]:
    where = ("--url", headgate.url, "--tenant", "example", "--pipeline", pipeline, "--project", API)
    return say(headgate, f"{verb}-ref", *where, *words)


@pytest.mark.long
def test_tags_start_a_pipeline_whose_result_is_reported(headgate: Headgate) -> None:
    repositories = headgate.repositories
    first = repositories.head(API)
    push(headgate, "HEAD:refs/heads/stable")
    tag(repositories, "v1", "-m", "One.")
    annotated = run_git("rev-parse", "refs/tags/v1", at=repositories.hub / API)
    text = note(headgate, first, "Headgate (release, refs/tags/v1):", "Build succeeded", "- stable")
    assert "before" not in text
    (one,) = wait_for("the history has it", lambda: ended(headgate, "release", "refs/tags/v1"))
    assert (one["refs"][0]["newrev"], one["refs"][0]["branch"], one["refs"][0]["change"]) == (annotated, None, None)
    output = log(headgate, one)
    assert f"tag=v1 branch= ref=refs/tags/v1 new={annotated} old= head={first}" in output
    assert "\nv1\n" in output or "| v1" in output, output

    second = commit(headgate, {"more": "x\n"})
    tag(repositories, "light")  # of a commit that is in no branch
    text = note(headgate, second, "Headgate (release, refs/tags/light):", "Build succeeded")
    assert "- stable" not in text.partition("refs/tags/light")[2]
    tag(repositories, "v1")  # moved, and lightweight now
    text = note(headgate, second, "Headgate (release, refs/tags/v1):")
    two = wait_for("it ran again", lambda: ended(headgate, "release", "refs/tags/v1")[1:])
    assert f"new={second} old={annotated}" in log(headgate, two[0])
    push(headgate, ":refs/tags/v1")

    headgate.kill()
    tag(repositories, "meanwhile")
    headgate.start()
    wait_for("what was pushed meanwhile ran", lambda: ended(headgate, "release", "refs/tags/meanwhile"))
    note(headgate, second, "Headgate (release, refs/tags/meanwhile):")
    blob = run_git("hash-object", "-w", "README", at=repositories.work(API))
    push(headgate, f"{blob}:refs/tags/blob")
    wait_for("what is not a commit is told", lambda: ended(headgate, "release", "refs/tags/blob"))
    assert (
        f"refs/tags/blob names a blob, {blob}, instead of a commit"
        in ended(headgate, "release", "refs/tags/blob")[0]["message"]
    )
    assert "names a blob" in note(headgate, blob, "release, refs/tags/blob")
    names = [one["refs"][0]["ref"] for one in ended(headgate, "release")]
    assert sorted(names) == [f"refs/tags/{name}" for name in ("blob", "light", "meanwhile", "v1", "v1")]


@pytest.mark.long
def test_refs_are_enqueued_and_dequeued_by_hand(headgate: Headgate) -> None:
    repositories = headgate.repositories
    head = repositories.head(API)
    assert refs(headgate, "enqueue", "refs/heads/master", pipeline="post") == (
        0,
        f"refs/heads/master of {API} is in post.\n",
    )
    note(headgate, head, "Headgate (post, refs/heads/master):", "Build succeeded")
    status, output = refs(headgate, "enqueue", "refs/tags/v9")
    assert status == 1 and f"{API} has no ref 'refs/tags/v9'" in output
    status, output = refs(headgate, "enqueue", "v9")
    assert status == 1 and "it must be a full ref name, such as refs/tags/v1" in output
    status, output = refs(headgate, "enqueue", "refs/tags/before", "--parameter", "where=nowhere", "--parameter", "x=1")
    assert status == 1 and "where: the value must be a selection from here, there" in output
    assert "x: there is no such parameter" in output
    assert refs(headgate, "enqueue", "refs/tags/before", "--parameter", "where=there")[0] == 0
    (one,) = wait_for("it ran", lambda: ended(headgate, "release", "refs/tags/before"))
    assert one["result"] == "SUCCESS"
    evil = commit(headgate, {"evil": "x\n"})
    push(headgate, f"{evil}:refs/for/master/evil")
    assert refs(headgate, "enqueue", "refs/heads/master", "--newrev", evil)[0] == 0
    wait_for("what its ref does not have is refused", lambda: ended(headgate, "release", "refs/heads/master"))
    refused = ended(headgate, "release", "refs/heads/master")[0]
    assert refused["result"] == "MERGE_CONFLICT" and f"{evil} is not in refs/heads/master" in refused["message"]
    held = commit(headgate, {"HOLD": "x\n"})
    tag(repositories, "held")
    wait_for("it runs", lambda: [j for i in headgate.items("release") for j in i["jobs"] if j["running"]])
    note(headgate, held, "Starting release jobs.")
    status, output = refs(headgate, "enqueue", "refs/tags/held")
    assert status == 1 and "is already in the pipeline" in output
    assert refs(headgate, "dequeue", "refs/tags/held") == (0, f"refs/tags/held of {API} was removed from release.\n")
    note(headgate, held, "Headgate (release, refs/tags/held):", "Build canceled.")
    status, output = refs(headgate, "dequeue", "refs/tags/held")
    assert status == 1 and "refs/tags/held is not in the pipeline" in output
    status, output = say(headgate, "actions", "--url", headgate.url, "--limit", "100")
    assert "dequeue: refs/tags/held of code/api in release" in output


@pytest.mark.long
def test_updates_of_other_refs_and_merged_changes_start_pipelines(headgate: Headgate) -> None:
    repositories = headgate.repositories
    head = repositories.head(API)
    push(headgate, "HEAD:refs/deploy/site")
    note(headgate, head, "Headgate (odd, refs/deploy/site):", "Build succeeded")
    push(headgate, ":refs/deploy/site")
    two = wait_for("its end is told, too", lambda: ended(headgate, "odd")[1:])
    assert f"ref=refs/deploy/site new= old={head}" in log(headgate, two[0])
    proposed = repositories.propose(API, "one", {"one": "x\n"})
    repositories.approve(API, "one")
    note(headgate, proposed, "Landed on master", "Headgate (promote):")
    (merged,) = wait_for("the history has it", lambda: ended(headgate, "promote"))
    assert (merged["refs"][0]["change"], merged["refs"][0]["branch"]) == ("one", "master")
    assert f"head={repositories.head(API)}" in log(headgate, merged)
    note(headgate, repositories.head(API), "Headgate (post, refs/heads/master):")
    direct = repositories.propose(API, "two", {"two": "x\n"})
    note(headgate, direct, "Headgate (check):")
    push(headgate, f"{direct}:refs/heads/master")
    note(headgate, direct, "Headgate (promote):")
    assert json.dumps(headgate.get("/api/tenant/example/status")["problems"]) == "[]"
