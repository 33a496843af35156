"""Test `headgate try`: jobs run on unchanged work trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.cli.main import group
from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.images import ImageRegistry, shell

from .conftest import PIPELINES, TENANTS

JOB = """#!/bin/sh
echo "hello says $(cat hello)"
headgate-return said="$(cat hello)"
grep -q hi hello
"""


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": JOB})
    found.create("code/api", {"hello": "hi\n", ".gitignore": "*.o\n"})
    found.create("code/lib", {"l": "landed\n"})
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    settings = (
        "[scheduler]\ntenant_config = tenants.yaml\n[connection local]\nbaseurl = hub\n[executor]\nsandbox = none\n"
    )
    (tmp_path / "headgate.conf").write_text(settings)
    return found


def attempt(repositories: Repositories, *arguments: str, project: str = "code/api") -> Result:
    config = str(repositories.root / "headgate.conf")
    trees = () if "--tree" in arguments else ("--tree", str(repositories.work(project)))
    return CliRunner().invoke(group, ["try", *arguments, *trees, "--config", config])


@pytest.mark.long
def test_a_job_sees_uncommitted_files_and_leaves_the_work_tree_unchanged(repositories: Repositories) -> None:
    work = repositories.work("code/api")
    (work / "hello").write_text("hi, all\n")
    (work / "left.o").write_text("ignored")
    before = run_git("count-objects", "-v", at=work), run_git("status", "--porcelain", at=work)
    done = attempt(repositories, "unit")
    assert done.exit_code == 0, done.output
    assert "| hello says hi, all" in done.output and 'returned {"said":"hi, all"}' in done.output
    assert (run_git("count-objects", "-v", at=work), run_git("status", "--porcelain", at=work)) == before


def test_a_failure_is_the_exit_status(repositories: Repositories, tmp_path: Path) -> None:
    (repositories.work("code/api") / "hello").write_text("bye\n")
    done = attempt(repositories, "unit", "--keep", str(tmp_path / "kept"))
    assert done.exit_code == 1 and "unit: FAILURE in" in done.output and "run: jobs/unit: exit status 1" in done.output
    assert [p.name for p in (tmp_path / "kept/logs").glob("*/job-output.txt")] == ["job-output.txt"]
    assert [work for work in (tmp_path / "kept/builds").glob("*/work") if (work / "src/local/code/api/hello").exists()]


def test_a_jobs_own_script_is_tried_before_it_lands(repositories: Repositories) -> None:
    (repositories.work("config") / "jobs/unit").write_text("#!/bin/sh\necho tried\n")
    trees = [word for name in ("code/api", "config") for word in ("--tree", str(repositories.work(name)))]
    done = attempt(repositories, "unit", *trees)
    assert done.exit_code == 0 and "| tried" in done.output


@pytest.mark.long
def test_a_job_that_is_only_in_the_work_tree(repositories: Repositories) -> None:
    text = """
- job:
    name: own
    parent: base
    run: own
    required-projects: [code/lib]
- project:
    check: {jobs: [own]}
"""
    repositories.write("code/api", {"zuul.yaml": text, "own": "#!/bin/sh\ncat $ZUUL_SRC_ROOT/*/code/lib/l\n"})
    done = attempt(repositories, "own")
    assert done.exit_code == 0 and "| landed" in done.output, done.output
    repositories.write("code/api", {"zuul.yaml": text.replace("run: own", "run: [")})
    assert "zuul.yaml" in attempt(repositories, "own").output


@pytest.mark.long
def test_the_data_of_an_earlier_job_can_be_supplied(repositories: Repositories) -> None:
    text = """
- job: {name: later, parent: base, run: later, dependencies: unit}
- project:
    check: {jobs: [later]}
"""
    repositories.write("code/api", {"zuul.yaml": text, "later": "#!/bin/sh\ngrep dsn $HEADGATE_VARS\n"})
    assert (
        "later depends on unit: pass data that they would return with --data" in attempt(repositories, "later").output
    )
    done = attempt(repositories, "later", "--data", "dsn=postgres://here")
    assert done.exit_code == 0 and 'dsn": "postgres://here"' in done.output
    assert "is not KEY=VALUE" in str(attempt(repositories, "later", "--data", "dsn").exception)


@pytest.mark.long
def test_jobs_and_directories_that_cannot_be_tried_are_reported(repositories: Repositories, tmp_path: Path) -> None:
    done = attempt(repositories, "unti")
    assert isinstance(done.exception, Exception) and done.exit_code == 1
    assert "runs no job 'unti'; did you mean 'unit'?" in str(done.exception)
    assert "Its jobs are: unit (check, gate)" in str(done.exception)
    assert "is not a git work tree" in str(attempt(repositories, "unit", "--tree", str(tmp_path)).exception)
    stranger = Repositories(tmp_path / "else")
    stranger.create("other", {"a": "a"})
    done = attempt(repositories, "unit", "--tree", str(stranger.work("other")))
    assert "name its project with --tree PROJECT=" in str(done.exception)
    assert attempt(repositories, "unit", "--tree", f"code/lib={stranger.work('other')}").exit_code == 1


SECRET = """
- secret:
    name: pypi
    data:
      user: ada
      token: !encrypted/pkcs1-oaep
        - YWJj
        - ZGVm
- job:
    name: publish
    parent: base
    run: publish
    post-review: true
    secrets: [{name: account, secret: pypi}]
- project:
    gate: {jobs: [publish]}
"""
PUBLISH = """#!/bin/sh
python3 -c '
import json, os
found = json.load(open(os.environ["HEADGATE_VARS"]))["account"]
print("user is", found["user"], "and the token has", len(found["token"]))
'
"""


@pytest.fixture
def publishing(repositories: Repositories) -> Repositories:
    pipelines = PIPELINES.replace("manager: dependent", "manager: dependent\n    post-review: true")
    repositories.write("config", {"zuul.yaml": pipelines})
    run_git("commit", "-qam", "Review", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD", at=repositories.work("config"))
    repositories.write("code/api", {"zuul.yaml": SECRET, "publish": PUBLISH})
    return repositories


def test_a_job_has_the_secrets_that_the_user_says(publishing: Repositories, tmp_path: Path) -> None:
    given = tmp_path / "mine.yaml"
    given.write_text("account: {token: pypi-8ae2f1}\n")
    directory = tmp_path / "kept"
    done = attempt(publishing, "publish", "--secrets", str(given), "--keep", str(directory))
    assert done.exit_code == 0 and "| user is ada and the token has 11" in done.output, done.output
    assert not [file for file in directory.rglob("*") if file.is_file() and b"pypi-8ae2f1" in file.read_bytes()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "secrets of job publish are encrypted: account.token; supply their values with --secrets FILE"),
        ("", "account.token; add it to "),
        ("account: {user: eve}", "account.token; add it to "),
        ("acount: {token: x}", "job publish has no secret 'acount'; did you mean 'account'?"),
        ("account: {token: 17}", "account.token must be a string; put it in quotes"),
        ("- account", "this must be a mapping of secrets"),
        ("account: {token: [", "mine.yaml:1: this is not YAML"),
    ],
)
def test_missing_secrets_are_prompted_for(
    publishing: Repositories, tmp_path: Path, text: str | None, message: str
) -> None:
    given = tmp_path / "mine.yaml"
    given.write_text(text or "")
    done = attempt(publishing, "publish", *(() if text is None else ("--secrets", str(given))))
    assert done.exit_code == 1 and message in str(done.exception), done.output


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has user namespaces for containers")
def test_a_job_in_a_container_that_its_settings_allow(
    repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ImageRegistry(tmp_path)
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(registry.settings))
    settings = tmp_path / "headgate.conf"
    before = settings.read_text()
    settings.write_text(before.replace("sandbox = none", "sandbox = container\nimages = 127.0.0.1:*"))
    text = """
- job: {name: own, parent: base, run: own, image: {build: image/Containerfile}}
- job: {name: strange, parent: own, image: "debian:12"}
- project:
    check: {jobs: [own, strange]}
"""
    containerfile = f"FROM {registry.put('team/tools', shell())}\nRUN echo made > /made\n"
    files = {"zuul.yaml": text, "own": "#!/bin/sh\ncat /made hello\n", "image/Containerfile": containerfile}
    repositories.write("code/api", files)
    try:
        done = attempt(repositories, "own")
        assert done.exit_code == 0 and "| made" in done.output and "| hi" in done.output, done.output
        done = attempt(repositories, "strange")
        assert done.exit_code == 1 and "jobs may not use the image docker.io/library/debian:12" in done.output
        settings.write_text(before)
        assert "no job runs in an image here ([executor] sandbox)" in attempt(repositories, "own").output
    finally:
        registry.close()
