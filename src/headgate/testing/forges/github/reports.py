"""Calls of the REST API about statuses and check runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.rest import Answer, FakeGitHubCall, Routes
from headgate.testing.forges.github.state import CheckRun
from headgate.testing.forges.github.views import Shown

ROUTES = Routes()
_REPO = "/repos/{owner}/{repo}"
_RUN = _REPO + "/check-runs/{check_run_id}"
ANNOTATIONS_MAX = 50
"""Limit on the annotations of one request."""
TEXT_MAX = 65535
MESSAGE_MAX_BYTES = 64 * 1024
ACTIONS_MAX = 3


@ROUTES.on("POST", _REPO + "/statuses/{sha}")
def status(call: FakeGitHubCall) -> Answer:
    """Give a commit a status."""
    call.needs("statuses")
    body, description = call.body, call.body.get("description")
    if description is not None and len(description) > 140:
        raise FakeGitHubRefused(422, "Validation Failed: description is too long (maximum is 140 characters)")
    if body["state"] not in ("error", "failure", "pending", "success"):
        raise FakeGitHubRefused(422, f"Validation Failed: state {body['state']} is not one of the four")
    sha, context = call.path["sha"], body.get("context", "default")
    who = call.caller.asker.account
    done = call.forge.says.status(
        call.repository, who, sha, body["state"], context, description, body.get("target_url")
    )
    return 201, call.forge.shows.status(call.repository, sha, done)


@ROUTES.on("GET", _REPO + "/commits/{ref}/statuses")
def statuses(call: FakeGitHubCall) -> Answer:
    """Answer the statuses of a commit, newest first."""
    found = call.repository.statuses.get(_commit(call), [])[::-1]
    return 200, [call.forge.shows.status(call.repository, _commit(call), s) for s in call.page(found)]


def _commit(call: FakeGitHubCall) -> str:
    ref = call.path["ref"]
    return hosts.heads(call.repository).get(ref, ref)


@ROUTES.on("GET", _REPO + "/commits/{ref}/check-runs")
def of_commit(call: FakeGitHubCall) -> Answer:
    """Answer the check runs of a commit, newest first."""
    sha = _commit(call)
    found = [r for r in call.repository.check_runs.values() if r.head_sha == sha]
    if "check_name" in call.query:
        found = [r for r in found if r.name == call.query["check_name"]]
    if "app_id" in call.query:
        found = [r for r in found if str(r.app.id) == call.query["app_id"]]
    found.sort(key=lambda r: -r.id)
    shown = [call.forge.shows.check_run(call.repository, r) for r in call.page(found)]
    return 200, {"total_count": len(found), "check_runs": shown}


@ROUTES.on("POST", _REPO + "/check-runs", makes=True)
def begin(call: FakeGitHubCall) -> Answer:
    """Make a check run: apps alone may."""
    call.needs("checks")
    app = call.caller.app
    if app is None:
        raise FakeGitHubRefused(403, "You must authenticate via a GitHub App.")
    if not hosts.has(call.repository, call.body["head_sha"]):
        raise FakeGitHubRefused(422, f"No commit found for SHA: {call.body['head_sha']}")
    run = CheckRun(next(call.forge.world.ids), call.body["name"], call.body["head_sha"], app)
    run.details_url = call.forge.shows.app(app)["external_url"]
    _write(call, run)
    call.forge.says.check(call.repository, call.caller.asker.account, run, "created")
    if run.status == "completed":
        call.forge.says.check(call.repository, call.caller.asker.account, run, "completed")
    return 201, call.forge.shows.check_run(call.repository, run)


def _run(call: FakeGitHubCall) -> CheckRun:
    found = call.repository.check_runs.get(int(call.path["check_run_id"]))
    if found is None:
        raise FakeGitHubRefused(404, "Not Found")
    return found


@ROUTES.on("GET", _RUN)
def one(call: FakeGitHubCall) -> Answer:
    """Answer a check run."""
    return 200, call.forge.shows.check_run(call.repository, _run(call))


@ROUTES.on("PATCH", _RUN)
def update(call: FakeGitHubCall) -> Answer:
    """Change a check run of one's own."""
    call.needs("checks")
    run = _run(call)
    if call.caller.app is not run.app:
        raise FakeGitHubRefused(
            403, "Invalid app_id - check run can only be modified by the GitHub App that created it."
        )
    old_status = run.status
    _write(call, run)
    if run.status == "completed" and old_status != "completed":
        call.forge.says.check(call.repository, call.caller.asker.account, run, "completed")
    return 200, call.forge.shows.check_run(call.repository, run)


@ROUTES.on("GET", _RUN + "/annotations")
def notes(call: FakeGitHubCall) -> Answer:
    """Answer the annotations of a check run."""
    run = _run(call)
    url = f"{call.forge.shows.web}/{call.repository.full_name}/blob/{run.head_sha}"
    found: list[Shown] = []
    for annotation in run.annotations:
        default = {"start_column": None, "end_column": None, "title": None, "raw_details": None}
        found.append({**default, **annotation, "blob_href": f"{url}/{annotation['path']}"})
    return 200, call.page(found)


def _write(call: FakeGitHubCall, run: CheckRun) -> None:
    body, now_s = call.body, call.forge.world.clock.now_s()
    # Any write of the app answers the request for another run.
    run.asked_again = False
    output: dict[str, Any] = body.get("output") or {}
    _checked(output, body.get("actions", []))
    run.name = body.get("name", run.name)
    run.external_id = body.get("external_id", run.external_id)
    run.details_url = body.get("details_url", run.details_url)
    run.title, run.summary = output.get("title", run.title), output.get("summary", run.summary)
    run.text = output.get("text", run.text)
    fresh = output.get("annotations", [])
    if fresh:
        # Appended, not replaced: clients send more than 50 in several requests.
        run.annotations += fresh
        run.batches.append(len(fresh))
    run.actions = body.get("actions", run.actions)
    run.status = body.get("status", run.status)
    if body.get("conclusion"):
        run.status, run.conclusion = "completed", body["conclusion"]
        run.completed_s = _time(body.get("completed_at")) or now_s
    elif run.status != "completed":
        run.conclusion, run.completed_s = None, None
    run.started_s = _time(body.get("started_at")) or run.started_s or now_s


def _checked(output: dict[str, Any], actions: list[dict[str, str]]) -> None:
    if output and (not output.get("title", "x") or len(output.get("summary", "")) > TEXT_MAX):
        raise FakeGitHubRefused(422, "Invalid request.\n\nOnly 65535 characters are allowed; the summary is too long.")
    if len(output.get("annotations", [])) > ANNOTATIONS_MAX:
        raise FakeGitHubRefused(
            422, "Invalid request.\n\nNo more than 50 items are allowed; annotations were supplied."
        )
    for note in output.get("annotations", []):
        if len(note["message"].encode()) > MESSAGE_MAX_BYTES or note["end_line"] < note["start_line"]:
            raise FakeGitHubRefused(422, "Invalid request.\n\nAn annotation is not valid.")
        if note["start_line"] != note["end_line"] and ("start_column" in note or "end_column" in note):
            raise FakeGitHubRefused(422, "Invalid request.\n\nColumns are only allowed on one line.")
    if len(actions) > ACTIONS_MAX or any(
        len(a["label"]) > 20 or len(a["identifier"]) > 20 or len(a["description"]) > 40 for a in actions
    ):
        raise FakeGitHubRefused(422, "Invalid request.\n\nAn action is not valid.")


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
