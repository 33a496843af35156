"""Test `headgate check --against`: local graphs are compared with the answers of a running server, in the form of its
API."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil

import httpx
import pytest

from headgate.base.errors import UserError
from headgate.cli.check.against import Only, ReferenceServer, as_json, as_text, compare_and_close
from headgate.cli.offline.reader import ReadingOptions
from headgate.cli.terminal.say import unstyled

APP = """
- secret: {name: key, data: {token: plain}}
- job:
    name: unit
    run: unit.yaml
    roles: [{zuul: lib}]
    nodeset: small
    vars: {retries: 3}
    required-projects: [lib]
    tags: [b, a]
- job: {name: docs, run: docs.yaml, dependencies: [unit]}
- project:
    vars: {color: green}
    check: {jobs: [unit, docs]}
"""
ROLES = [
    {
        "target_name": name,
        "type": "zuul",
        "project_canonical_name": f"hub/{name}",
        "implicit": implicit,
        "project_default_branch": "master",
        "connection": "hub",
        "project": name,
    }
    for name, implicit in (("app", True), ("lib", False))
]


def book(project, path, trusted, nesting, roles):
    return {
        "connection": "hub",
        "project": project,
        "branch": "master",
        "path": path,
        "trusted": trusted,
        "roles": roles,
        "secrets": {},
        "semaphores": [],
        "cleanup": False,
        "nesting_level": nesting,
        "preserve_home_paths": [],
    }


OPS_ROLE = {"target_name": "ops", "type": "zuul", "project_canonical_name": "hub/ops", "implicit": True}
UNIT = {
    "job": "unit",
    "branch": "master",
    "items": [],
    "projects": [],
    "repo_state_keys": [],
    "ssh_keys": [],
    "pre_timeout": None,
    "timeout": 600,
    "post_timeout": None,
    "override_branch": None,
    "override_checkout": None,
    "ansible_version": "9",
    "workspace_scheme": "golang",
    "workspace_checkout": True,
    "playbooks": [book("app", "unit.yaml", False, 1, [*ROLES, OPS_ROLE])],
    "pre_playbooks": [book("ops", "pre.yaml", True, 0, [OPS_ROLE])],
    "post_playbooks": [],
    "cleanup_playbooks": [],
    "nodeset": {
        "name": "small",
        "nodes": [{"name": "controller", "aliases": [], "label": "debian", "id": None, "state": "unknown"}],
        "groups": [],
        "alternatives": [],
    },
    "vars": {"retries": 3, "color": "green"},
    "extra_vars": {},
    "host_vars": {},
    "group_vars": {},
    "secret_vars": None,
    "failure_output": [],
    "zuul": {
        "build": "0" * 32,
        "job": "unit",
        "voting": True,
        "post_review": False,
        "jobtags": ["a", "b"],
        "projects": {"hub/app": {"name": "app"}, "hub/lib": {"name": "lib"}},
        "_inheritance_path": ["..."],
    },
}
DOCS = {"job": "docs", "timeout": 600, "zuul": {"voting": True}}
GRAPH = [
    {"name": "unit", "dependencies": []},
    {"name": "docs", "dependencies": [{"name": "unit", "soft": False}]},
]
ANSWERS = {
    "tenants": [{"name": "acme", "projects": 3, "queue": 0}],
    "tenant/acme/pipeline/check/project/app/branch/master/freeze-jobs": GRAPH,
    "tenant/acme/pipeline/check/project/app/branch/master/freeze-job/unit": UNIT,
    "tenant/acme/pipeline/check/project/app/branch/master/freeze-job/docs": DOCS,
}
TENANTS = """
- tenant:
    name: acme
    default-ansible-version: "9"
    source:
      hub:
        config-projects: [ops]
        untrusted-projects: [app, lib]
"""
ONLY = Only()


@pytest.fixture
def compare(offline):
    """Query a server with these answers (a number is a status); every other graph is empty."""

    def make(answers, app=APP, only=ONLY, token="", more=None, tenants=TENANTS, gone=()):
        made = offline(app=app, tenants=tenants)
        for name in gone:
            shutil.rmtree(made.repos / "hub" / name)
        tenants = ReadingOptions(None, made.root / "tenants.yaml", made.repos, None).load().tenants
        if more is not None:
            tenants = {name: one.with_files(more) for name, one in tenants.items()}
        asked_for = []

        def answer(request):
            path = request.url.path.removeprefix("/api/")
            asked_for.append(request)
            found = answers.get(path, [] if path.endswith("freeze-jobs") else 404)
            if isinstance(found, int):
                return httpx.Response(found, text="<p>no</p>")
            return httpx.Response(200, content=found if isinstance(found, bytes) else json.dumps(found).encode())

        server = ReferenceServer("https://zuul.example/api/", token, httpx.MockTransport(answer))
        return asyncio.run(compare_and_close(tenants, only, server, lambda done, of: None)), asked_for

    return make


def differences(found):
    return [(d.path, d.old, d.new) for one in found.graphs for d in one.differences]


def changed(path, **new):
    answers = copy.deepcopy(ANSWERS)
    answers[path].update(new)
    return answers


JOB = "tenant/acme/pipeline/check/project/app/branch/master/freeze-job/unit"
JOBS = "tenant/acme/pipeline/check/project/app/branch/master/freeze-jobs"


def test_the_same_graphs_are_the_same(compare):
    found, _ = compare(ANSWERS)
    assert differences(found) == []
    assert (len(found.graphs), sum(one.jobs for one in found.graphs)) == (6, 2)
    assert "all are the same" in list(as_text(found, "there", 30))[-1]


@pytest.mark.parametrize(
    ("new", "path", "ours", "theirs"),
    [
        ({"timeout": 60}, "timeout", 600, 60),
        ({"vars": {"retries": 4, "color": "green"}}, "vars.retries", 3, 4),
        ({"vars": {"retries": 3}}, "vars.color", "green", None),
        ({"zuul": {"voting": False}}, "voting", True, False),
        ({"zuul": {"jobtags": ["a"]}}, "jobtags", ["a", "b"], ["a"]),
        ({"zuul": {"projects": {}}}, "projects", ["hub/lib"], []),
        ({"nodeset": {**UNIT["nodeset"], "name": "large"}}, "nodeset.name", "small", "large"),
        ({"workspace_scheme": "flat"}, "workspace_scheme", "golang", "flat"),
        ({"ansible_version": "11"}, "ansible_version", "9", "11"),
        ({"override_checkout": "stable"}, "override_checkout", "", "stable"),
    ],
)
def test_a_different_attribute_is_reported(compare, new, path, ours, theirs):
    found, _ = compare(changed(JOB, **new))
    assert differences(found) == [(f"unit.{path}", ours, theirs)]


def test_roles_in_another_order_are_a_difference(compare):
    books = copy.deepcopy(UNIT["playbooks"])
    books[0]["roles"].reverse()
    ((path, _, _),) = differences(compare(changed(JOB, playbooks=books))[0])
    assert path == "unit.playbooks"


def test_jobs_and_dependencies_that_only_one_side_has(compare):
    answers = {**ANSWERS, JOBS: [{"name": "unit", "dependencies": []}, {"name": "lint", "dependencies": []}]}
    assert differences(compare(answers)[0]) == [("docs", "runs", None), ("lint", None, "runs")]
    answers = {**ANSWERS, JOBS: [GRAPH[0], {"name": "docs", "dependencies": [{"name": "unit", "soft": True}]}]}
    assert differences(compare(answers)[0]) == [("docs.dependencies", ["unit"], ["unit (soft)"])]


def test_a_graph_that_one_side_cannot_freeze_is_a_difference(compare):
    """If both servers have it, there is no difference; if only one has it, it is reported."""
    broken = APP.replace("run: docs.yaml, ", "")
    assert differences(compare({**ANSWERS, JOBS: 500}, app=broken)[0]) == []
    assert differences(compare({**ANSWERS, JOBS: 500})[0]) == [("graph", "2 jobs", "500 no")]
    ((_, ours, theirs),) = differences(compare(ANSWERS, app=broken)[0])
    assert "job docs has nothing to run" in ours and theirs == "2 jobs"


def test_attributes_that_the_server_omits_are_not_compared(compare):
    assert differences(compare({**ANSWERS, JOB: {"job": "unit", "timeout": 600}})[0]) == []


@pytest.mark.parametrize(
    "odd", [[], "text", {"playbooks": "no"}, {"playbooks": [3]}, {"zuul": {"projects": [None]}, "vars": 7}, 404]
)
def test_an_answer_of_any_form_is_a_difference_and_no_crash(compare, odd):
    assert differences(compare({**ANSWERS, JOB: odd})[0])


@pytest.mark.parametrize("odd", [{"a": 1}, ["x", 3, None], 404])
def test_a_graph_of_any_form(compare, odd):
    assert differences(compare({**ANSWERS, JOBS: odd})[0])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({**ANSWERS, "tenants": [{"name": "other"}]}, "no tenant acme; it has other; choose with --tenant"),
        ({**ANSWERS, "tenants": b"<html>"}, "give the root URL of the pages"),
        ({**ANSWERS, "tenants": 401}, "requires a token"),
        ({**ANSWERS, JOB: 403}, "requires a token"),
    ],
)
def test_an_unavailable_server_is_reported(compare, answers, message):
    with pytest.raises(UserError, match=message):
        compare(answers)


def test_only_requested_projects_are_fetched(compare):
    found, requests = compare(ANSWERS, only=Only(("lib",)), token="secret")
    assert len(found.graphs) == 2 and {r.headers["authorization"] for r in requests} == {"Bearer secret"}


def test_one_difference_of_many_graphs_is_reported_once(compare):
    answers = {
        path.replace("pipeline/check", p): a for p in ("pipeline/check", "pipeline/gate") for path, a in ANSWERS.items()
    }
    app = APP.replace("timeout", "timeout") + "    gate: {jobs: [unit, docs]}\n"
    answers = {path: {**a, "timeout": 60} if path.endswith("/unit") else a for path, a in answers.items()}
    found, _ = compare(answers, app=app)
    shown = unstyled("\n".join(as_text(found, "https://zuul.example", 30)))
    assert shown.count("unit.timeout") == 1 and "acme: check of app@master, acme: gate of app@master" in shown
    assert "6 job graphs of 3 branches and 4 jobs compared with https://zuul.example: 2 graphs differ" in shown
    output = as_json(found)
    assert output["graphs"] == 6 and [one["pipeline"] for one in output["differing"]] == ["check", "gate"]
    assert output["differing"][0]["differences"] == [{"path": "unit.timeout", "ours": 600, "theirs": 60}]


def test_an_unreachable_server_is_a_usage_error(offline):
    made = offline()
    done = made.run("check", "--against", "http://127.0.0.1:1")
    assert done.exit_code == 2 and "http://127.0.0.1:1/api/tenants: " in done.stderr


def test_host_names_that_are_only_assumed_here_are_no_difference(compare):
    text = json.dumps(ANSWERS).replace('"hub/', '"git.example.org/')
    assert differences(compare(json.loads(text))[0]) == []


def test_answers_of_a_server_cannot_control_the_terminal(compare):
    found, _ = compare(changed(JOB, workspace_scheme="\x1b[2Jflat"))
    assert "\x1b[2J" not in "\n".join(as_text(found, "there", 30))


async def test_an_endless_answer_is_cut():
    async def endless():
        while True:
            yield b" " * 1_000

    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=endless()))
    server = ReferenceServer("https://zuul.example", "", transport, answer_max_bytes=5_000)
    with pytest.raises(UserError, match="the response is larger than 5 kB"):
        await compare_and_close({}, ONLY, server, lambda done, of: None)


STABLE_JOBS = "tenant/acme/pipeline/check/project/app/branch/stable/freeze-jobs"
GATE_JOBS = STABLE_JOBS.replace("check", "gate")
ON_STABLE = "- project: {check: {jobs: [noop]}}\n"


def apart(found):
    return [(one.project, one.branch, one.why) for one in found.apart]


def test_every_branch_is_compared(compare):
    more = {"hub/app": {"stable": {"zuul.yaml": ON_STABLE}}}
    answers = {**ANSWERS, STABLE_JOBS: [{"name": "noop", "dependencies": []}]}
    answers[STABLE_JOBS.replace("freeze-jobs", "freeze-job/noop")] = {"job": "noop"}
    found, _ = compare(answers, more=more)
    assert (differences(found), apart(found), len(found.graphs)) == ([], [], 8)
    found, _ = compare({**answers, STABLE_JOBS: []}, more=more)
    assert differences(found) == [("noop", "runs", None)]
    assert "check of app@stable" in "\n".join(as_text(found, "there", 30))
    found, _ = compare({**answers, STABLE_JOBS: []}, more=more, only=Only((), ("master",)))
    assert (differences(found), len(found.graphs)) == ([], 6)


def test_a_branch_unknown_to_the_server_is_reported_and_not_compared(compare):
    more = {"hub/app": {"stable": {"zuul.yaml": ON_STABLE}}}
    found, _ = compare({**ANSWERS, STABLE_JOBS: 404, GATE_JOBS: 404}, more=more)
    assert (differences(found), len(found.graphs)) == ([], 6)
    assert apart(found) == [("hub/app", "stable", "the server does not know it: no")]
    output = unstyled("\n".join(as_text(found, "there", 30)))
    assert "not compared  acme: hub/app@stable\n    the server does not know it: no" in output
    assert output.endswith("all are the same; 1 not compared, see above")
    assert as_json(found)["not_compared"] == [
        {"tenant": "acme", "project": "hub/app", "branch": "stable", "why": "the server does not know it: no"}
    ]


def test_a_pipeline_that_the_server_does_not_know_is_a_difference_on_every_branch(compare):
    more = {"hub/app": {"stable": {"zuul.yaml": ON_STABLE}}}
    found, _ = compare({**ANSWERS, JOBS: 404, STABLE_JOBS: 404}, more=more)
    assert differences(found) == [("graph", "2 jobs", "404 no"), ("graph", "1 jobs", "404 no")]
    assert apart(found) == []


def test_branches_that_only_the_server_reads_are_reported(compare):
    def own(branch, project="app"):
        return {"source_context": {"project": project, "branch": branch, "path": "zuul.yaml"}, "pipelines": []}

    shown = {"configs": [own("master"), own("old"), own("gone", "ops"), own("out"), {"source_context": None}, 3]}
    tenants = TENANTS.replace("[app, lib]", "[app: {exclude-branches: out}, lib]")
    found, _ = compare({**ANSWERS, "tenant/acme/project/app": shown}, tenants=tenants, gone=["lib"])
    assert [(project, branch) for project, branch, _ in apart(found)] == [
        ("hub/app", "old"),
        ("hub/app", "out"),
        ("hub/lib", ""),
    ]
    whys = [why for *_, why in apart(found)]
    assert whys[0] == "the server reads this branch, but the branch does not exist here" and "hub/lib" in whys[2]


def test_a_comparison_of_nothing_is_an_error(compare, offline):
    with pytest.raises(UserError, match="none of the selected projects has a branch old"):
        compare(ANSWERS, only=Only((), ("old",)))
    done = offline().run("check", "--branch", "master")
    assert done.exit_code == 2 and "--branch needs --against" in done.stderr
