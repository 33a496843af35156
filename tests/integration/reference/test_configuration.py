"""Test jobs, projects, frozen jobs and providers in the API."""

from __future__ import annotations

from typing import Any

from .conftest import TENANT, World, token


async def test_a_job_is_described_with_every_definition(world: World) -> None:
    first, second = await world.get("T/job/linters")
    expected: dict[str, Any] = {
        "parent": "unit", "branches": ["master", "stable/.*"], "files": [{"regex": "src/.*", "negate": False}],
        "timeout": 300, "attempts": 2, "voting": False, "variables": {"depth": 1}, "extra_variables": {"width": 2},
        "semaphores": [{"name": "license", "resources_first": True}], "provides": ["report"], "requires": ["unit"],
        "dependencies": [{"name": "unit", "soft": True}], "type": "normal", "abstract": False, "protected": None,
        "required_projects": [
            {"project_name": "code/lib", "override_branch": None, "override_checkout": "stable/1"}
        ],
        "tags": ["quick", "cheap"],
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert [book["path"] for book in first["run"]] == ["jobs/linters"] and first["pre_run"] == []
    assert [(book["path"], book["cleanup"]) for book in first["post_run"]] == [("jobs/sweep", True)]
    nodes = [(node["name"], node["aliases"], node["label"]) for node in first["nodeset"]["nodes"]]
    assert nodes == [("controller", ["primary"], "large"), ("compute", [], "small")]
    assert first["nodeset"]["groups"] == [{"name": "all-nodes", "nodes": ["controller", "compute"]}]
    assert second["branches"] == ["release"] and second["voting"] and "nodeset" not in second
    (base,) = await world.get("T/job/base")
    assert base["parent"] is None and base["abstract"] and base["branches"] is None
    (unit,) = await world.get("T/job/unit")
    assert unit["parent"] == "base", "the tenant's default parent"
    missing = await world.client.get(f"{TENANT}/job/nothing")
    assert missing.status_code == 404 and "Job not found" in missing.json()["description"]


async def test_jobs_omit_empty_attributes(world: World) -> None:
    jobs = {one["name"]: one for one in await world.get("T/jobs")}
    assert list(jobs) == sorted(jobs)
    assert jobs["linters"]["description"] == "Looks at the code." and jobs["linters"]["tags"] == ["quick", "cheap"]
    assert jobs["linters"]["variants"][0] == {"parent": "unit", "branches": ["master", "stable/.*"]}
    assert jobs["base"] == {"name": "base", "variants": [{}]}


async def test_a_project_is_described_with_its_templates(world: World) -> None:
    project = await world.get("T/project/code/api")
    own, template = project["configs"]
    assert own["templates"] == ["more-jobs"] and not own["is_template"] and own["queue_name"] == "integrated"
    assert [pipe["name"] for pipe in own["pipelines"]] == ["check", "gate"]
    assert [[one["name"] for one in jobs] for jobs in own["pipelines"][0]["jobs"]] == [["unit"]]
    assert template["is_template"] and [pipe["name"] for pipe in template["pipelines"]] == ["gate"]
    ((linters,),) = template["pipelines"][0]["jobs"]
    assert linters["name"] == "linters" and linters["files"] == [{"regex": ".*", "negate": False}]
    assert project["metadata"] == {
        "merge_mode": "merge", "default_branch": "master", "is_template": False, "queue_name": "integrated"
    }  # fmt: skip
    bare = await world.get("T/project/config")
    assert (bare["configs"], bare["metadata"]) == ([], {}) and bare["type"] == "config"
    names = [one["name"] for one in await world.get("T/projects")]
    assert names == sorted(names) and len(names) == 3


async def test_a_frozen_job_has_the_attributes_that_a_build_would_receive(world: World) -> None:
    place = "T/pipeline/gate/project/code/api/branch/master"
    graph = await world.get(f"{place}/freeze-jobs")
    assert {one["name"]: one["dependencies"] for one in graph} == {
        "unit": [], "linters": [{"name": "unit", "soft": True}]
    }  # fmt: skip
    job = await world.get(f"{place}/freeze-job/linters")
    assert (job["job"], job["branch"], job["timeout"]) == ("linters", "master", 300)
    zuul = job["zuul"]
    assert zuul["project"] == {
        "name": "code/api", "short_name": "api", "canonical_hostname": "git.example",
        "canonical_name": "git.example/code/api", "src_dir": "src/git.example/code/api",
    }  # fmt: skip
    assert (zuul["build"], zuul["pipeline"], zuul["tenant"]) == ("0" * 32, "gate", "example")
    assert zuul["jobtags"] == ["cheap", "quick"] and not zuul["voting"]
    assert [one["path"] for one in job["playbooks"]] == ["jobs/linters"]
    roles = [role for book in job["playbooks"] for role in book["roles"]]
    assert {(role["project"], role["project_default_branch"]) for role in roles} == {("git.example/config", "master")}
    (noop,) = await world.get("T/job/noop")
    assert noop["roles"] == [] and noop["source_context"] == {"project": "", "branch": "", "path": "", "line": 0}
    assert [one["path"] for one in job["post_playbooks"]] == ["jobs/sweep"]
    assert (
        await world.client.get(f"{TENANT}/pipeline/gate/project/code/api/branch/master/freeze-job/none")
    ).status_code == 404
    unknown = await world.client.get(f"{TENANT}/pipeline/none/project/code/api/branch/master/freeze-jobs")
    assert unknown.status_code == 404


async def test_the_parameters_of_a_pipeline_are_public(world: World) -> None:
    url = f"{TENANT}/project/code/lib/freeze-pipeline"
    body = {"pipeline": "by-hand", "ref": "refs/heads/master"}
    answer = await world.client.post(url, json=body)
    assert answer.status_code == 200 and answer.json() == {
        "parameters": [
            {
                "name": "level", "type": "string", "description": "How much", "values": None, "default": "low",
                "required": False,
            }
        ]
    }  # fmt: skip
    for wrong, status, why in (
        ({"pipeline": "by-hand"}, 400, "ref is required"),
        ({"ref": "refs/heads/master"}, 400, "pipeline is required"),
        ({**body, "pipeline": "none"}, 404, "none"),
    ):
        refused = await world.client.post(url, json=wrong)
        assert refused.status_code == status and why in refused.json()["description"]
    assert (await world.client.post(f"{TENANT}/project/none/freeze-pipeline", json=body)).status_code == 404
    plain = await world.client.post(url, content=b"{}", headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415


async def test_config_errors_are_filtered_and_paged(world: World) -> None:
    every = await world.get("T/config-errors")
    for query, count in (
        ("severity=error&severity=warning", len(every)), ("project=none", 0), ("limit=0", 0), ("skip=1000", 0)
    ):  # fmt: skip
        assert len(await world.get(f"T/config-errors?{query}")) == count, query
    for wrong in ("limit=-1", "limit=x", "projct=a"):
        assert (await world.client.get(f"{TENANT}/config-errors?{wrong}")).status_code == 400


async def test_labels_are_those_that_nodesets_ask_for(world: World) -> None:
    assert [one["name"] for one in await world.get("T/labels")] == ["large", "small"]


async def test_missing_objects_are_404_with_a_token_and_401_without(world: World) -> None:
    for method, path in (
        ("GET", "project-ssh-key/code/api.pub"),
        ("GET", "tenant-ssh-key/ssh.pub"),
        ("PUT", "nodes/none"),
        ("DELETE", "nodeset-requests/none"),
        ("POST", "image/none/build"),
        ("DELETE", "image-build-artifact/none"),
        ("DELETE", "image-upload/none"),
        ("POST", "image-upload/none/validate"),
        ("POST", "image-upload/none/upload"),
    ):
        body = {"state": "hold"} if method == "PUT" else None  # pages send no body with the others, and no type
        answer = await world.client.request(method, f"{TENANT}/{path}", json=body, headers=token())
        assert answer.status_code == 404, f"{method} {path}: {answer.text}"
        if method != "GET":
            refused = await world.client.request(method, f"{TENANT}/{path}", json=body)
            assert refused.status_code == 401, f"{method} {path}: {refused.text}"
