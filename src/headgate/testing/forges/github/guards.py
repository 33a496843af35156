"""Deliver what happens to the rules of branches: a classic rule or a ruleset was made, edited, deleted."""

from __future__ import annotations

from headgate.testing.forges.github.state import FakeGitHubProtection, FakeGitHubRepository, Ruleset, stamp
from headgate.testing.forges.github.views import Shown


def rule(at: FakeGitHubRepository, one: FakeGitHubProtection) -> Shown:
    """Return a classic rule as webhooks have it."""

    def level(enabled: bool) -> str:
        return "everyone" if enabled else "off"

    return {
        "id": one.id,
        "repository_id": at.id,
        "name": one.pattern,
        "created_at": stamp(0),
        "updated_at": stamp(0),
        "pull_request_reviews_enforcement_level": level(one.approvals is not None),
        "required_approving_review_count": one.approvals or 0,
        "dismiss_stale_reviews_on_push": False,
        "require_code_owner_review": one.code_owners,
        "authorized_dismissal_actors_only": False,
        "ignore_approvals_from_contributors": False,
        "required_status_checks": list(one.contexts),
        "required_status_checks_enforcement_level": level(bool(one.contexts)),
        "strict_required_status_checks_policy": one.strict,
        "signature_requirement_enforcement_level": level(one.signatures),
        "linear_history_requirement_enforcement_level": level(one.linear),
        "lock_branch_enforcement_level": level(one.locked),
        "admin_enforced": one.enforce_admins,
        "create_protected": False,
        "allow_force_pushes_enforcement_level": "off",
        "allow_deletions_enforcement_level": "off",
        "merge_queue_enforcement_level": "off",
        "required_deployments_enforcement_level": "off",
        "required_conversation_resolution_level": level(one.conversations),
        "authorized_actors_only": one.pushers is not None,
        "authorized_actor_names": sorted(one.pushers or ()),
    }


def ruleset(at: FakeGitHubRepository, one: Ruleset) -> Shown:
    """Return a ruleset as webhooks have it."""
    return {
        "id": one.id,
        "name": one.name,
        "target": "branch",
        "source_type": "Repository",
        "source": at.full_name,
        "enforcement": one.enforcement,
        "conditions": {"ref_name": {"include": list(one.branches), "exclude": []}},
        "created_at": stamp(one.created_s),
        "updated_at": stamp(one.created_s),
    }
