"""Read one pull request from GitHub with one query, and convert it to the form that all forges share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.pulls import AnyPull, ProgramReport, PullAction, PullRemark, Reviewed, ms, newest_of_each
from headgate.adapters.forges.rest import ForgeKey, NotThere, Rejected
from headgate.config.forges.facts import ForgeAccount, ProgramStatus, Vote

# Ten pages hold a thousand statuses and as many threads; the rest is not read.
PAGES_MAX = 10
READS_MAX = 3
"""Maximum number of attempts to read all pages, each of which fails if the head moves in the meantime."""
QUERY = """
query($owner: String!, $name: String!, $number: Int!, $contexts: String, $threads: String) {
  repository(owner: $owner, name: $name) {
    nameWithOwner
    pullRequest(number: $number) {
      number title body url state isDraft createdAt updatedAt
      headRefOid baseRefName baseRefOid mergeable mergeStateStatus reviewDecision viewerCanMergeAsAdmin
      author { __typename login ... on User { email } }
      mergeCommit { oid }
      labels(first: 100) { nodes { name } }
      reviews(last: 100) {
        nodes {
          fullDatabaseId state submittedAt authorCanPushToRepository author { __typename login ... on User { email } }
        }
      }
      opinions: latestOpinionatedReviews(first: 100, writersOnly: true) {
        nodes {
          fullDatabaseId state submittedAt authorCanPushToRepository author { __typename login ... on User { email } }
        }
      }
      comments(last: 50) { nodes { fullDatabaseId body createdAt author { __typename login ... on User { email } } } }
      deeds: timelineItems(last: 100, itemTypes: [
        LABELED_EVENT UNLABELED_EVENT CLOSED_EVENT REOPENED_EVENT CONVERT_TO_DRAFT_EVENT READY_FOR_REVIEW_EVENT
      ]) {
        nodes {
          __typename
          ... on LabeledEvent { actor { __typename login } label { name } }
          ... on UnlabeledEvent { actor { __typename login } label { name } }
          ... on ClosedEvent { actor { __typename login } }
          ... on ReopenedEvent { actor { __typename login } }
          ... on ConvertToDraftEvent { actor { __typename login } }
          ... on ReadyForReviewEvent { actor { __typename login } }
        }
      }
      reviewThreads(first: 100, after: $threads) { nodes { isResolved } pageInfo { hasNextPage endCursor } }
      signatures: commits(last: 100) { totalCount nodes { commit { oid signature { __typename isValid } } } }
      head: commits(last: 1) {
        nodes { commit { oid statusCheckRollup { contexts(first: 100, after: $contexts) {
          pageInfo { hasNextPage endCursor }
          nodes {
            __typename
            ... on StatusContext { context state targetUrl createdAt creator { __typename login } }
            ... on CheckRun {
              name status conclusion completedAt detailsUrl databaseId
              checkSuite { status app { slug } }
            }
          }
        } } } }
      }
      baseRef {
        branchProtectionRule {
          requiresStatusChecks requiresStrictStatusChecks requiredStatusCheckContexts requiresApprovingReviews
          requiredApprovingReviewCount requiresCodeOwnerReviews requiresConversationResolution requiresCommitSignatures
          lockBranch restrictsPushes
          pushAllowances(first: 100) { nodes { actor { __typename ... on App { slug } ... on User { login } } } }
          bypassPullRequestAllowances(first: 100) {
            nodes { actor { __typename ... on App { slug } ... on User { login } } }
          }
        }
        rules(first: 100) {
          nodes {
            type
            repositoryRuleset { databaseId name }
            parameters {
              __typename
              ... on RequiredStatusChecksParameters {
                strictRequiredStatusChecksPolicy requiredStatusChecks { context }
              }
              ... on PullRequestParameters {
                requiredApprovingReviewCount requireCodeOwnerReview requiredReviewThreadResolution
              }
            }
          }
        }
      }
    }
  }
}
"""
"""GraphQL query for a pull request."""
DEEDS = {
    "LabeledEvent": "labeled",
    "UnlabeledEvent": "unlabeled",
    "ClosedEvent": "closed",
    "ReopenedEvent": "reopened",
    "ConvertToDraftEvent": "converted_to_draft",
    "ReadyForReviewEvent": "ready_for_review",
}
"""Type of a timeline event in GraphQL -> action as triggers name it."""


@dataclass(frozen=True, slots=True)
class GitHubPull(AnyPull):
    """Describe a pull request at one moment."""

    merge_state: str
    decision: str
    """APPROVED | CHANGES_REQUESTED | REVIEW_REQUIRED; empty if no reviews are required."""
    as_admin: bool
    """Whether our account may merge despite unmet requirements of classic protection."""
    opinions: tuple[Reviewed, ...]
    """The newest review of each person with write access, however many other reviews follow it."""
    unresolved: int
    signed: bool
    protection: Mapping[str, Any] | None
    """Classic protection, as GraphQL returns it."""
    rules: tuple[Mapping[str, Any], ...] | None
    """Rules of rulesets; None if our account may not see them."""
    rules_shown: bool = True
    """Whether `protection` is complete; otherwise rules may exist that our account may not see."""

    @property
    def approved(self) -> bool:
        """Return whether the change is approved; see `AnyPull`."""
        return self.decision == "APPROVED"

    @property
    def votes(self) -> tuple[Vote, ...]:
        """Return the votes that count; see `AnyPull`."""
        return newest_of_each(self.reviews, self.opinions)


async def look(client: GitHubClient, key: ForgeKey, project: str, number: int, *, urgent: bool = True) -> GitHubPull:
    """Return a pull request of `project` (owner/name).  Raise NotThere, Denied, Rejected, ReporterAway."""
    for _ in range(READS_MAX):
        found = await _read(client, key, project, number, urgent)
        if found is not None:
            return found
    raise Rejected(409, "its head moves each time it is read")


async def _read(client: GitHubClient, key: ForgeKey, project: str, number: int, urgent: bool) -> GitHubPull | None:
    """Return the pull request; None if its head moves between two pages, which then describe two patchsets."""
    owner, _, name = project.partition("/")
    cursors: dict[str, str | None] = {"contexts": None, "threads": None}
    found: GitHubPull | None = None
    for _ in range(PAGES_MAX):
        data = await client.query(key, QUERY, urgent=urgent, owner=owner, name=name, number=number, **cursors)
        repository = data.get("repository")
        pull = repository.get("pullRequest") if repository else None
        if repository is None or pull is None:
            raise NotThere(f"{project} has no pull request {number}")
        page = _pull(str(repository["nameWithOwner"]), pull)
        if found is not None and found.head != page.head:
            return None
        found = page if found is None else _joined(found, page, cursors)
        cursors = {"contexts": _more(_contexts(pull)), "threads": _more(pull["reviewThreads"])}
        if not any(cursors.values()):
            break
    return found


def _joined(before: GitHubPull, page: GitHubPull, cursors: Mapping[str, str | None]) -> GitHubPull:
    reports = page.reports if cursors["contexts"] else ()
    unresolved = page.unresolved if cursors["threads"] else 0
    return replace(before, reports=(*before.reports, *reports), unresolved=before.unresolved + unresolved)


def _more(connection: Mapping[str, Any] | None) -> str | None:
    info = connection["pageInfo"] if connection else {}
    return str(info["endCursor"]) if info.get("hasNextPage") else None


def _contexts(pull: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for one in pull["head"]["nodes"]:
        rollup = one["commit"]["statusCheckRollup"]
        # Within one response, the list of commits may lag behind the head right after a push.
        if rollup is not None and one["commit"]["oid"] == pull["headRefOid"]:
            contexts: Mapping[str, Any] = rollup["contexts"]
            return contexts
    return None


def _pull(project: str, pull: Mapping[str, Any]) -> GitHubPull:
    contexts, base = _contexts(pull), pull["baseRef"] or {}
    merge_commit, signed = pull["mergeCommit"], pull["signatures"]
    rules = base.get("rules")
    return GitHubPull(
        project=project,
        number=int(pull["number"]),
        title=pull["title"],
        body=(pull["body"] or "").replace("\r\n", "\n"),
        url=pull["url"],
        state=pull["state"],
        draft=pull["isDraft"],
        created_ms=ms(pull["createdAt"]),
        updated=pull["updatedAt"],
        head=pull["headRefOid"],
        base=pull["baseRefName"],
        base_commit=pull["baseRefOid"],
        author=_account(pull["author"]),
        mergeable={"MERGEABLE": True, "CONFLICTING": False}.get(pull["mergeable"]),
        merge_state=pull["mergeStateStatus"],
        decision=pull["reviewDecision"] or "",
        as_admin=bool(pull["viewerCanMergeAsAdmin"]),
        merge_commit=merge_commit["oid"] if merge_commit else "",
        labels=tuple(one["name"] for one in pull["labels"]["nodes"]),
        reviews=_reviews(pull["reviews"]),
        opinions=_reviews(pull["opinions"]),
        remarks=tuple(_remark(one) for one in pull["comments"]["nodes"]),
        reports=tuple(_report(one) for one in (contexts["nodes"] if contexts else ())),
        unresolved=sum(not one["isResolved"] for one in pull["reviewThreads"]["nodes"]),
        # If not all commits fit into the page, nothing is known about the rest.
        signed=signed["totalCount"] <= len(signed["nodes"])
        and all((one["commit"]["signature"] or {}).get("isValid") for one in signed["nodes"]),
        protection=base.get("branchProtectionRule"),
        rules=tuple(rules["nodes"]) if rules is not None else None,
        deeds=tuple(_deed(one) for one in pull["deeds"]["nodes"]),
    )


def _deed(timeline_item: Mapping[str, Any]) -> PullAction:
    label = (timeline_item.get("label") or {}).get("name", "")
    return PullAction(DEEDS[timeline_item["__typename"]], ForgeAccount(login(timeline_item["actor"])), str(label))


def login(actor: Mapping[str, Any] | None) -> str:
    """Return the login of an account, as REST writes it; for a deleted account, GitHub's `ghost`."""
    if actor is None:
        return "ghost"
    # REST writes `dependabot[bot]` where GraphQL writes `dependabot`; people configure the former.
    name = str(actor["login"])
    return f"{name}[bot]" if actor["__typename"] == "Bot" and not name.endswith("[bot]") else name


def _account(actor: Mapping[str, Any] | None) -> ForgeAccount:
    return ForgeAccount(login(actor), str(actor.get("email") or "") if actor else "")


def _reviews(page: Mapping[str, Any] | None) -> tuple[Reviewed, ...]:
    return tuple(_review(one) for one in page["nodes"] if one["submittedAt"]) if page is not None else ()


def _review(review: Mapping[str, Any]) -> Reviewed:
    at_ms = ms(review["submittedAt"])
    pushes = bool(review["authorCanPushToRepository"])
    return Reviewed(int(review["fullDatabaseId"]), _account(review["author"]), review["state"].lower(), at_ms, pushes)


def _remark(comment: Mapping[str, Any]) -> PullRemark:
    return PullRemark(
        int(comment["fullDatabaseId"]), _account(comment["author"]), comment["body"], ms(comment["createdAt"])
    )


def _report(context: Mapping[str, Any]) -> ProgramReport:
    if context["__typename"] == "StatusContext":
        who, state = login(context["creator"]), context["state"].lower()
        status = ProgramStatus(who, context["context"], state, url=context["targetUrl"] or "")
        return ProgramReport(status, ms(context["createdAt"]))
    suite, ended = context["checkSuite"], context["completedAt"]
    slug = (suite["app"] or {}).get("slug", "") if suite else ""
    state = (context["conclusion"] or context["status"]).lower()
    # GitHub has no field for a requested rerun; it shows as a queued suite whose run still has its old result.
    again = bool(suite) and suite["status"] == "QUEUED" and context["status"] == "COMPLETED"
    status = ProgramStatus(slug, context["name"], state, check=True, url=context["detailsUrl"] or "")
    return ProgramReport(status, ms(ended) if ended else 0, again)
