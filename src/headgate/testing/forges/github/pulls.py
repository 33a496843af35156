"""Calls of the REST API about pull requests."""

from __future__ import annotations

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.rest import Answer, FakeGitHubCall, Routes
from headgate.testing.forges.github.state import FakeGitHubComment, FakeGitHubPull
from headgate.testing.forges.github.views import Shown

ROUTES = Routes()
_REPO = "/repos/{owner}/{repo}"
_PULL = _REPO + "/pulls/{pull_number}"
_ISSUE = _REPO + "/issues/{issue_number}"
FILES_MAX = 3000
BODY_MAX = 65536


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
def one(call: FakeGitHubCall) -> Answer:
    """Answer a pull request."""
    return 200, call.forge.shows.pull(call.pull, call.caller.asker)


@ROUTES.on("PATCH", _PULL)
def changed(call: FakeGitHubCall) -> Answer:
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
def of_commit(call: FakeGitHubCall) -> Answer:
    """Answer the pull requests that a commit is the head, or the merge, of."""
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
    for name in call.body["labels"] if isinstance(call.body, dict) else call.body:
        call.forge.says.label(call.pull, call.caller.asker.account, name)
    return 200, [call.forge.shows.label(call.repository, one) for one in call.pull.labels]


@ROUTES.on("DELETE", _ISSUE + "/labels/{name}")
def remove_label(call: FakeGitHubCall) -> Answer:
    """Take a label off."""
    call.needs("issues")
    call.forge.says.unlabel(call.pull, call.caller.asker.account, call.path["name"])
    return 200, [call.forge.shows.label(call.repository, one) for one in call.pull.labels]
