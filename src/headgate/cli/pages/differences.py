"""List the differences from the reference, each with the test that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headgate.config.files.source import CHECKED, ERRORS
from headgate.config.freeze.freeze import UNDECIDED
from headgate.config.parse import TOO_LARGE


class ReferenceDifference(NamedTuple):
    says: str
    case: str
    """Test that shows the difference: `file: case` of the tests of the language, or the name of another test."""


REPORTED = (
    ReferenceDifference(
        "A role of a project that is not in the tenant: a warning. The role is ignored.",
        "severity: a role of a project outside of the tenant is left out with a warning",
    ),
    ReferenceDifference(
        "An undefined job in a template or among dependencies: a warning.",
        "severity: a job in a template, or a dependency, that nobody defines is a warning",
    ),
    ReferenceDifference(
        "An undefined secret that no playbook would get: a warning. Elsewhere, it is an error.",
        "jobs: a secret of another project, or of none",
    ),
    ReferenceDifference(
        "`image-build-name` with an undefined image: a warning. A change whose graph needs the job reports the error.",
        "severity: an image that nobody defines ends the graph of its job only",
    ),
    ReferenceDifference(
        "`image-build-name` in a project that neither defines the image nor is a config-project: the error for an "
        "undefined image. Otherwise, any project could choose the image of machines.",
        "severity: only who defines an image says that a job builds it",
    ),
    ReferenceDifference(
        "`image-built` and `image-validated` in a pipeline without `post-review`: the warning No Effect.",
        "effects: what a pipeline says of images has an effect only after review",
    ),
    ReferenceDifference(
        "Settings that Headgate accepts and ignores, such as `success-url`, or some reporter settings for forges: the "
        "warning No Effect in `headgate check`, in the API's `config-errors` and on the reference page, but not in "
        "reports of changes.",
        "effects: an attribute of a job that does nothing here is warned of where it is written",
    ),
    ReferenceDifference(
        "An undefined default parent: one warning. Jobs that name no parent are in no graph.",
        "errors: an undefined default parent is one warning",
    ),
    ReferenceDifference(
        "A node or group whose name has a special meaning in an Ansible inventory, such as `127.0.0.1` or `web[1:9]`: "
        "a warning. A change that would use it reports an error, since the job could reach its executor.",
        "severity: a node whose name means more to an inventory is a warning, and is not run",
    ),
    ReferenceDifference(
        "An unknown key in a GitHub trigger: an error, and the pipeline is not loaded. Without the misspelt filter, "
        "the trigger would match more than intended.",
        "drivers: an unknown key costs the pipeline, whatever the driver",
    ),
    ReferenceDifference(
        "Any attribute that another project sets on a protected base job: an error for the change.",
        "severity: a protected base job is protected when it is frozen, too",
    ),
    ReferenceDifference(
        "Configuration that exceeds a limit (bytes, files, values, levels, jobs, dependencies, slots): an error.",
        "test_budgets.py",
    ),
    ReferenceDifference(
        "A regular expression that cannot be matched within a limited number of steps: an error for the change.",
        "test_patterns.py",
    ),
    ReferenceDifference(
        "Integers of more than 64 bits, and keys that are not strings: an error.",
        "severity: numbers of more than 64 bits, and keys that are no text",
    ),
)
"""Configuration that Headgate reports and the reference accepts."""
ACCEPTED = (
    ReferenceDifference(
        "A word in a pipeline's settings for a connection that no driver knows: a warning. It never matches.",
        "drivers: an unknown word costs no pipeline",
    ),
    ReferenceDifference(
        "A GitHub trigger with a value of the wrong type: a warning. The trigger is ignored.",
        "drivers: what has the wrong form in a trigger of GitHub triggers nothing, and the pipeline stays",
    ),
    ReferenceDifference(
        "An unknown key of an image, flavor or label in a section or provider: a warning.",
        "nodepool: an unknown word of an image, flavor or label is a warning and costs nothing",
    ),
    ReferenceDifference(
        "`status-url` of a GitHub reporter.",
        "drivers: words that a driver knows",
    ),
    ReferenceDifference(
        "`merge-mode: merge-recursive` and `merge-ort`, as documented. Headgate always merges the same way.",
        "severity: modes of merging that the reference documents",
    ),
    ReferenceDifference(
        "`default-oidc-ttl` of a tenant, as documented.",
        "tenants: everything a tenant may say",
    ),
    ReferenceDifference(
        "The permission `validate-image-upload` of a role, as documented.",
        "tenants: a name nobody defines refuses its tenant, and no other",
    ),
    ReferenceDifference(
        "A group of projects with only `projects`.",
        "tenants: a group of projects alone",
    ),
    ReferenceDifference(
        "A non-base job that sets an attribute and makes it final in one stanza. It does not conflict with itself.",
        "jobs: an attribute that was made final",
    ),
    ReferenceDifference(
        "Changes to a job with `protected: false`, which does not protect the job.",
        "jobs: that protected: false protects is not imitated",
    ),
    ReferenceDifference(
        "Dates, and other YAML scalars that JSON does not have. They are strings.",
        "severity: scalars that JSON does not have are texts",
    ),
    ReferenceDifference(
        "The drivers `git` and `queue`, and `labels` and `max-nodes-per-project` of a tenant. Only Headgate has these.",
        "errors: what is reported to queues of messages",
    ),
    ReferenceDifference(
        "`rerun-only-failed` of a pipeline (only Headgate): another run of a failed patchset runs only the failed "
        "jobs, if the inputs of the other jobs are unchanged.",
        "errors: what passed is not run again where a pipeline says so",
    ),
    ReferenceDifference(
        "`image` of a job (only Headgate): its untrusted programs run in a container of that image, which is also a "
        "host for its playbooks.",
        "test_containers.py",
    ),
    ReferenceDifference(
        "`land: true` of a plain git reporter, and `land = push` of a connection to GitHub, GitLab or Gitea (only "
        "Headgate): Headgate pushes the tested commit itself.",
        "test_pushing.py",
    ),
    ReferenceDifference(
        "`committer-score` of a Pagure requirement (only Headgate): only votes of people who may commit count.",
        "test_dialects.py",
    ),
    ReferenceDifference(
        "`reuse` of a job or a pipeline (only Headgate): a job that succeeded on the same inputs does not run again. "
        "Such a job gets only the repositories that it names, and `zuul.items` contains only its own change.",
        "errors: builds stand for others where a job or its pipeline says so",
    ),
)
"""Configuration that Headgate accepts and the reference rejects."""
OTHERWISE = (
    ReferenceDifference(
        "File matchers also see paths that only the merge modifies, because the branch has renamed files that the "
        "change edits.",
        "test_renamed_paths.py",
    ),
    ReferenceDifference(
        "No change is tested with a change that it needs of a project that the tenant does not have: it is enqueued "
        "once the other one has landed.",
        "test_footers.py",
    ),
    ReferenceDifference(
        "Jobs of type reporter run after the change has left its queue. Changes behind it neither wait nor restart.",
        "graphs: reporter jobs are attached by those who may",
    ),
    ReferenceDifference(
        "`attempts: 0` makes one attempt. A timeout below one second is the executor's own limit.",
        "severity: attempts and timeouts of zero and less are let pass",
    ),
    ReferenceDifference(
        "A trusted playbook can use only roles that config-projects name.",
        "test_playbook_origins.py",
    ),
    ReferenceDifference(
        "`galaxy` roles are accepted with a warning, but not fetched.",
        "effects: roles of Ansible Galaxy",
    ),
    ReferenceDifference(
        "`zuul.redactions` has at most 100 lines and 8,000 characters. Returning more fails the build.",
        "test_returned.py",
    ),
    ReferenceDifference(
        "For later playbooks that are trusted or have other secrets, facts that a playbook sets become variables with "
        "lower precedence than the job's.",
        "test_facts.py",
    ),
    ReferenceDifference(
        "`zuul.playbook_context` contains the playbooks that were prepared so far. The ssh user of a machine that "
        "names none is the executor's own user, not `zuul`.",
        "test_variables.py",
    ),
    ReferenceDifference(
        "Home directories are not cleared between playbooks with the same rights, so `preserve-home-paths` has no "
        "effect, and causes a warning.",
        "effects: homes are never cleared, and jobs choose their Ansible",
    ),
    ReferenceDifference(
        "A job that requests no version of Ansible, in a tenant without a default, runs with version 11 if `headgate "
        "ansible install` has installed it, or else with the Ansible in Headgate's own environment. If a requested "
        "version is not installed, the result is ERROR, unless `[executor] manage_ansible` is set (default: no).",
        "test_versions.py",
    ),
    ReferenceDifference(
        "File comments of jobs are in the report, with line numbers of the tested files.",
        "merging: failure-output and preserve-home-paths unite",
    ),
    ReferenceDifference(
        "`failure-output` matches anywhere in the first 4,000 bytes of a line. A build whose matching takes more than "
        "20 seconds fails.",
        "merging: failure-output and preserve-home-paths unite",
    ),
)
"""Configuration with a different effect."""
REFERENCE_NAMES = frozenset(
    (
        "Unknown",
        "Unknown Configuration Error",
        "Node From Group Not Found",
        "Duplicate Node",
        "Duplicate Nodeset Group",
        "Unknown Connection",
        "Label Forbidden",
        "Label Not Found",
        "Max Timeout Exceeded",
        "Pre-Timeout Exceeds Timeout",
        "Max OIDC TTL Exceeded",
        "OIDC issuer not allowed",
        "Reporter Job Not Permitted",
        "Project Not Found",
        "Template Not Found",
        "Nodeset Not Found",
        "Pipeline Forbidden",
        "Project Forbidden",
        "Base Job Not Permitted",
        "AuthZ Rule Not Found",
        "Role Not Found",
        "Global Semaphore Not Found",
        "Multiple Project Configurations",
        "Regex Deprecation",
        "Cleanup Run Deprecation",
        "Github Trigger Configuration Warning",
        "Gerrit Deprecation",
        "GitHub Deprecation",
    )
)
"""Names of errors and warnings that the reference is known to use."""
HEAD = """# Differences from Zuul

The reference is Zuul 14.3. Configuration that it accepts causes at most a warning in Headgate, with the exceptions on
this page. Each line has a test. For the meaning of configuration that the reference leaves open, see the
[configuration language](config.md).
"""
NAMES = """Errors and warnings have the reference's names, so that existing filters continue to work. Syntax errors are
`Unknown`, and errors without a name of their own are `Unknown Configuration Error`, as in the reference. Only Headgate
has these names:
"""


def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    for title, found in (
        ("Reported by Headgate, but not by the reference", REPORTED),
        ("Accepted by Headgate, but not by the reference", ACCEPTED),
        ("Different effects", OTHERWISE),
    ):
        yield f"## {title}\n"
        yield from (f"- {one.says}" for one in found)
        yield ""
    yield from ("## Names of errors that only Headgate has\n", NAMES, "| name | when |", "|---|---|")
    own = {name: one.when for name, one in {**ERRORS, **CHECKED}.items() if name not in REFERENCE_NAMES}
    own[TOO_LARGE] = "the configuration exceeds its limits"
    own[UNDECIDED] = "a regular expression cannot be matched within the allowed number of steps"
    yield from (f"| {name} | {when} |" for name, when in own.items())
