"""Answer calls of the REST API about pull requests, and about the statuses and check runs of their commits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.access import Answer, FakeGitHubCall, Routes
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.model import CheckRun, FakeGitHubComment, FakeGitHubPull
from headgate.testing.forges.github.views import Shown

FILES_MAX = 3000
"""Limit on the files of a pull request."""
BODY_MAX = 65536
"""Limit on the text of a comment or review."""
ANNOTATIONS_MAX = 50
"""Limit on the annotations of one request."""
TEXT_MAX = 65535
"""Limit on the summary of a check run."""
MESSAGE_MAX_BYTES = 64 * 1024
"""Limit on the text of an annotation."""
ACTIONS_MAX = 3
"""Limit on the buttons of a check run."""
ROUTES = Routes()
_REPO = "/repos/{owner}/{repo}"
_PULL = _REPO + "/pulls/{pull_number}"
_ISSUE = _REPO + "/issues/{issue_number}"
_RUN = _REPO + "/check-runs/{check_run_id}"


@ROUTES.on("GET", _REPO + "/pulls")
def listed(call: FakeGitHubCall) -> Answer:
    """Answer pull requests."""
    call.needs("metadata", "read")
    state, base = call.query.get("state", "open"), call.query.get("base")
    found = [p for p in call.repository.pulls.values() if state in ("all", p.state) and base in (None, p.base_ref)]
    if "head" in call.query:
        found = [p for p in found if p.head_label == call.query["head"]]
    by_update = call.query.get("sort", "created") == "updated"
    # As at GitHub, the default direction depends on whether an order is given.
    default = "asc" if "sort" in call.query else "desc"
    newest_first = call.query.get("direction", default) == "desc"
    found.sort(key=lambda p: (p.updated_s if by_update else p.created_s, p.number), reverse=newest_first)
    return 200, [call.forge.shows.listed_pull(p) for p in call.page(found)]


@ROUTES.on("GET", _PULL)
def one_pull(call: FakeGitHubCall) -> Answer:
    """Answer a pull request."""
    return 200, call.forge.shows.pull(call.pull, call.caller.asker)


@ROUTES.on("PATCH", _PULL)
def change_state(call: FakeGitHubCall) -> Answer:
    """Close it, or open it again."""
    call.needs("pull_requests")
    who, wanted = call.caller.asker.account, call.body.get("state", call.pull.state)
    if wanted != call.pull.state and call.pull.merged:
        raise FakeGitHubRefused(422, "Validation Failed: a merged pull request stays closed")
    if wanted != call.pull.state:
        act = call.forge.pulls.close if wanted == "closed" else call.forge.pulls.reopen
        act(call.pull, who)
    return 200, call.forge.shows.pull(call.pull, call.caller.asker)


@ROUTES.on("GET", _PULL + "/files")
def files(call: FakeGitHubCall) -> Answer:
    """Answer the changed files: 3,000 at most."""
    pull = call.pull
    url = f"{call.forge.shows.api}/repos/{pull.repository.full_name}"
    raw = f"{call.forge.shows.web}/{pull.repository.full_name}/raw/{pull.head_sha}"
    found: list[Shown] = []
    for file in hosts.files_of(pull, pull.base_sha)[:FILES_MAX]:
        shown: Shown = {
            "sha": file.blob,
            "filename": file.path,
            "status": file.status,
            "additions": file.added,
            "deletions": file.deleted,
            "changes": file.added + file.deleted,
            "blob_url": f"{raw}/{file.path}",
            "raw_url": f"{raw}/{file.path}",
            "contents_url": f"{url}/contents/{file.path}",
        }
        if file.previous is not None:
            shown["previous_filename"] = file.previous
        found.append(shown)
    return 200, call.page(found)


@ROUTES.on("GET", _REPO + "/commits/{commit_sha}/pulls")
def pulls_of_commit(call: FakeGitHubCall) -> Answer:
    """Answer the pull requests whose head or merge is this commit."""
    sha = call.path["commit_sha"]
    if not hosts.has(call.repository, sha):
        raise FakeGitHubRefused(422, f"No commit found for SHA: {sha}")
    found = [p for p in call.repository.pulls.values() if sha in (p.head_sha, p.merge_commit_sha)]
    return 200, [call.forge.shows.listed_pull(p) for p in call.page(found)]


@ROUTES.on("GET", _PULL + "/reviews")
def reviews(call: FakeGitHubCall) -> Answer:
    """Answer the reviews, oldest first."""
    return 200, [call.forge.shows.review(call.pull, r) for r in call.page(call.pull.reviews)]


@ROUTES.on("POST", _PULL + "/reviews", makes=True)
def review(call: FakeGitHubCall) -> Answer:
    """Review it."""
    call.needs("pull_requests")
    event, body = call.body.get("event"), call.body.get("body", "")
    states = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}
    # Only an approval may have an empty text.
    if event not in states or (event != "APPROVE" and not body) or len(body) > BODY_MAX:
        raise FakeGitHubRefused(422, "Unprocessable Entity")
    commit = call.body.get("commit_id")
    if commit is not None and not hosts.has(call.repository, commit):
        raise FakeGitHubRefused(422, "Unprocessable Entity: commit_id is not part of the pull request")
    who = call.caller.asker.account
    done = call.forge.says.review(call.pull, who, states[event], body, commit)  # type: ignore[arg-type] # of the table
    return 200, call.forge.shows.review(call.pull, done)


@ROUTES.on("PUT", _PULL + "/merge")
def merge(call: FakeGitHubCall) -> Answer:
    """Merge it."""
    call.needs("contents")
    body = call.body or {}
    method = body.get("merge_method", "merge")
    sha = call.forge.pulls.merge(
        call.pull, call.caller.asker, body.get("sha"), method, body.get("commit_title"), body.get("commit_message")
    )
    return 200, {"sha": sha, "merged": True, "message": "Pull Request successfully merged"}


@ROUTES.on("GET", _ISSUE + "/comments")
def comments(call: FakeGitHubCall) -> Answer:
    """Answer the comments, oldest first."""
    return 200, [call.forge.shows.comment(call.pull, c) for c in call.page(call.pull.comments)]


@ROUTES.on("POST", _ISSUE + "/comments", makes=True)
def comment(call: FakeGitHubCall) -> Answer:
    """Comment on it."""
    call.needs("issues")
    _fits(call.body["body"])
    done = call.forge.says.comment(call.pull, call.caller.asker.account, call.body["body"])
    return 201, call.forge.shows.comment(call.pull, done)


def _fits(body: str) -> None:
    if not body.strip() or len(body) > BODY_MAX:
        raise FakeGitHubRefused(422, f"Validation Failed: body is too long (maximum is {BODY_MAX} characters)")


def _find_comment(call: FakeGitHubCall) -> tuple[FakeGitHubPull, FakeGitHubComment]:
    wanted = call.path["comment_id"]
    for pull in call.repository.pulls.values():
        for found in pull.comments:
            if str(found.id) == wanted:
                return pull, found
    raise FakeGitHubRefused(404, "Not Found")


@ROUTES.on("GET", _REPO + "/issues/comments/{comment_id}")
def one_comment(call: FakeGitHubCall) -> Answer:
    """Answer a comment."""
    return 200, call.forge.shows.comment(*_find_comment(call))


@ROUTES.on("PATCH", _REPO + "/issues/comments/{comment_id}")
def edit_comment(call: FakeGitHubCall) -> Answer:
    """Change a comment."""
    call.needs("issues")
    pull, found = _find_comment(call)
    _fits(call.body["body"])
    call.forge.says.edit_comment(pull, call.caller.asker.account, found, call.body["body"])
    return 200, call.forge.shows.comment(pull, found)


@ROUTES.on("DELETE", _REPO + "/issues/comments/{comment_id}")
def remove_comment(call: FakeGitHubCall) -> Answer:
    """Remove a comment."""
    call.needs("issues")
    pull, found = _find_comment(call)
    pull.comments.remove(found)
    return 204, None


@ROUTES.on("GET", _ISSUE + "/labels")
def labels(call: FakeGitHubCall) -> Answer:
    """Answer its labels."""
    return 200, [call.forge.shows.label(call.repository, one) for one in call.page(call.pull.labels)]


@ROUTES.on("POST", _ISSUE + "/labels")
def add_labels(call: FakeGitHubCall) -> Answer:
    """Put labels on it."""
    call.needs("issues")
    # GitHub accepts the list itself, or an object that contains it.
    for name in call.body["labels"] if isinstance(call.body, dict) else call.body:
        call.forge.says.label(call.pull, call.caller.asker.account, name)
    return 200, [call.forge.shows.label(call.repository, one) for one in call.pull.labels]


@ROUTES.on("DELETE", _ISSUE + "/labels/{name}")
def remove_label(call: FakeGitHubCall) -> Answer:
    """Remove a label."""
    call.needs("issues")
    call.forge.says.unlabel(call.pull, call.caller.asker.account, call.path["name"])
    return 200, [call.forge.shows.label(call.repository, one) for one in call.pull.labels]


@ROUTES.on("POST", _REPO + "/statuses/{sha}")
def give_status(call: FakeGitHubCall) -> Answer:
    """Set a status of a commit."""
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
def runs_of_commit(call: FakeGitHubCall) -> Answer:
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
def begin_run(call: FakeGitHubCall) -> Answer:
    """Create a check run, which only apps may do."""
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
def one_run(call: FakeGitHubCall) -> Answer:
    """Answer a check run."""
    return 200, call.forge.shows.check_run(call.repository, _run(call))


@ROUTES.on("PATCH", _RUN)
def update_run(call: FakeGitHubCall) -> Answer:
    """Change a check run of the calling app."""
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
def list_annotations(call: FakeGitHubCall) -> Answer:
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
    run.rerun_requested = False
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
    # A run that starts again loses its earlier result.
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
