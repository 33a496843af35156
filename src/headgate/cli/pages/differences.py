"""List where Headgate differs from the reference, each with the case that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headgate.config.files.source import CHECKED, ERRORS
from headgate.config.freeze.freeze import UNDECIDED
from headgate.config.parse import TOO_LARGE


class ReferenceDifference(NamedTuple):
    says: str
    case: str
    """Test that shows the difference: `file: case` of the language's rules, or the name of another test."""


REPORTED = (
    ReferenceDifference(
        "A role of a project that is not in the tenant: a warning. The role is left out.",
        "severity: a role of a project outside of the tenant is left out with a warning",
    ),
    ReferenceDifference(
        "A job that nobody defines, named by a template or among dependencies: a warning.",
        "severity: a job in a template, or a dependency, that nobody defines is a warning",
    ),
    ReferenceDifference(
        "A secret that nobody defines, where no playbook would get it: a warning. It is an error elsewhere.",
        "jobs: a secret of another project, or of none",
    ),
    ReferenceDifference(
        "`image-build-name` of an image that nobody defines: a warning. A change whose graph needs the job "
        "reports the error.",
        "severity: an image that nobody defines ends the graph of its job only",
    ),
    ReferenceDifference(
        "`image-build-name` said by a project that neither defines the image nor is a config-project: the error of an "
        "image that nobody defines. Others would choose what machines are made of.",
        "severity: only who defines an image says that a job builds it",
    ),
    ReferenceDifference(
        "`image-built` and `image-validated` in a pipeline without `post-review`: the warning No Effect.",
        "effects: what a pipeline says of images has an effect only after review",
    ),
    ReferenceDifference(
        "What is accepted and does nothing here, such as `success-url`, or whatever a pipeline says to a forge: the "
        "warning No Effect, in `headgate check`, the API's `config-errors` and the reference page. No report of a "
        "change tells it.",
        "effects: an attribute of a job that does nothing here is warned of where it is written",
    ),
    ReferenceDifference(
        "A default parent that nobody defines: a warning, told once. Jobs that name no parent are in no graph.",
        "errors: a default parent that is not there is said once",
    ),
    ReferenceDifference(
        "A node or group whose name means another host to an inventory, such as `127.0.0.1` or `web[1:9]`: a "
        "warning. A change that would run on it reports an error, since the job could reach its executor.",
        "severity: a node whose name means more to an inventory is a warning, and is not run",
    ),
    ReferenceDifference(
        "An unknown key in a trigger of GitHub: an error, and the pipeline is lost. Without the misspelt "
        "filter, the trigger would let in more than was meant.",
        "drivers: an unknown key costs the pipeline, whatever the driver",
    ),
    ReferenceDifference(
        "Any attribute that another project sets on a protected base job: an error of the change.",
        "severity: a protected base job is protected when it is frozen, too",
    ),
    ReferenceDifference(
        "Configuration beyond its bounds (bytes, files, values, levels, jobs, dependencies, slots): an error.",
        "test_budgets.py",
    ),
    ReferenceDifference(
        "A pattern that cannot be decided in a bounded number of steps: an error of the change.",
        "test_patterns.py",
    ),
    ReferenceDifference(
        "Whole numbers of more than 64 bits, and keys that are no text: an error.",
        "severity: numbers of more than 64 bits, and keys that are no text",
    ),
)
"""Errors of Headgate that the reference accepts."""
ACCEPTED = (
    ReferenceDifference(
        "A word that no driver knows in what a pipeline says to a connection: a warning. It never matches.",
        "drivers: an unknown word costs no pipeline",
    ),
    ReferenceDifference(
        "A trigger of GitHub with a value of the wrong form, whatever that is: a warning. The trigger is left out.",
        "drivers: what has the wrong form in a trigger of GitHub triggers nothing, and the pipeline stays",
    ),
    ReferenceDifference(
        "An unknown key of an image, flavor or label in a section or provider: a warning.",
        "nodepool: an unknown word of an image, flavor or label is a warning and costs nothing",
    ),
    ReferenceDifference(
        "`status-url` of a reporter of GitHub.",
        "drivers: words that a driver knows",
    ),
    ReferenceDifference(
        "`merge-mode: merge-recursive` and `merge-ort`, as documented. Headgate has one way to merge.",
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
        "A group of projects with nothing but `projects`.",
        "tenants: a group of projects alone",
    ),
    ReferenceDifference(
        "A non-base job that sets an attribute and makes it final in one stanza. It does not conflict with itself.",
        "jobs: an attribute that was made final",
    ),
    ReferenceDifference(
        "Changes of a job that says `protected: false`. It does not protect.",
        "jobs: that protected: false protects is not imitated",
    ),
    ReferenceDifference(
        "Dates, and other scalars of YAML that JSON does not have. They are texts.",
        "severity: scalars that JSON does not have are texts",
    ),
    ReferenceDifference(
        "The drivers `git` and `queue`, and `labels` and `max-nodes-per-project` of a tenant, which are Headgate's.",
        "errors: what is reported to queues of messages",
    ),
    ReferenceDifference(
        "`rerun-only-failed` of a pipeline, which is Headgate's: a patchset that failed and is tried again runs only "
        "what failed, as long as all that the other jobs work on is the same.",
        "errors: what passed is not run again where a pipeline says so",
    ),
    ReferenceDifference(
        "`image` of a job, which is Headgate's: its untrusted programs run in a container of that image, which is the "
        "host of its playbooks, too.",
        "test_containers.py",
    ),
    ReferenceDifference(
        "`land: true` of a reporter of plain git, and `land = push` of a connection to GitHub, GitLab or Gitea, which "
        "are Headgate's: the tested commit itself is pushed.",
        "test_pushing.py",
    ),
    ReferenceDifference(
        "`committer-score` of a requirement of Pagure, which is Headgate's: only votes of those count who may commit.",
        "test_dialects.py",
    ),
    ReferenceDifference(
        "`reuse` of a job or a pipeline, which is Headgate's: what succeeded on the same inputs is not run again. Such "
        "a job has the repositories that it names, and `zuul.items` its own change alone.",
        "errors: builds stand for others where a job or its pipeline says so",
    ),
)
"""Configuration that Headgate accepts and the reference rejects."""
OTHERWISE = (
    ReferenceDifference(
        "Jobs of type reporter run when the change has left its queue. Those behind neither wait nor start anew.",
        "graphs: reporter jobs are attached by those who may",
    ),
    ReferenceDifference(
        "`attempts: 0` makes one attempt. A timeout below one second is the executor's own limit.",
        "severity: attempts and timeouts of zero and less are let pass",
    ),
    ReferenceDifference(
        "A trusted playbook has the roles that config-projects named, and no others.",
        "test_playbook_origins.py",
    ),
    ReferenceDifference(
        "`galaxy` roles are accepted, warned of, and not fetched.",
        "effects: roles of Ansible Galaxy",
    ),
    ReferenceDifference(
        "`zuul.redactions` has at most 100 lines and 8,000 characters. More is refused when it is returned, and fails "
        "the build.",
        "test_returned.py",
    ),
    ReferenceDifference(
        "A fact that a playbook leaves is a variable, beneath those of the job, to playbooks that are trusted or have "
        "other secrets.",
        "test_facts.py",
    ),
    ReferenceDifference(
        "`zuul.playbook_context` tells of the playbooks that were prepared so far, and a machine that names no user is "
        "reached as the executor's own, not as `zuul`.",
        "test_variables.py",
    ),
    ReferenceDifference(
        "Home directories are not cleared between playbooks of like rights, so that `preserve-home-paths` has nothing "
        "to do, which is warned of.",
        "effects: homes are never cleared, and jobs choose their Ansible",
    ),
    ReferenceDifference(
        "A job that asks for no version of Ansible, in a tenant that names none, runs with 11 where `headgate ansible "
        "install` has been run, and else with the Ansible beside Headgate. A version that is asked for and not "
        "installed is ERROR, unless `[executor] manage_ansible` is set, which it is not by default.",
        "test_versions.py",
    ),
    ReferenceDifference(
        "Comments of jobs on files are in the report, with the lines of the files that were tested.",
        "merging: failure-output and preserve-home-paths unite",
    ),
    ReferenceDifference(
        "`failure-output` is looked for anywhere in a line, in the first 4,000 bytes of it, for 20 seconds of a "
        "build's time at most. A build that takes longer fails.",
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
"""Names of errors and warnings that the reference was seen to use."""
HEAD = """# Differences from the reference

The reference is Zuul 14.3. What it lets pass is at most a warning here, with the exceptions of this page. Each line
has a test. What a configuration *means*, where the reference leaves it open, is in the
[configuration language](config.md).
"""
NAMES = """Errors and warnings have the reference's names, so that filters go on to work. Form errors are `Unknown`, and
whatever has no other name is `Unknown Configuration Error`, as in the reference. These names are Headgate's alone:
"""


def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    for title, found in (
        ("Reported here, and not by the reference", REPORTED),
        ("Accepted here, and not by the reference", ACCEPTED),
        ("Of another effect", OTHERWISE),
    ):
        yield f"## {title}\n"
        yield from (f"- {one.says}" for one in found)
        yield ""
    yield from ("## Names of errors that differ\n", NAMES, "| name | when |", "|---|---|")
    own = {name: one.when for name, one in {**ERRORS, **CHECKED}.items() if name not in REFERENCE_NAMES}
    own[TOO_LARGE] = "the configuration exceeds its limits"
    own[UNDECIDED] = "a pattern cannot be decided within the allowed number of steps"
    yield from (f"| {name} | {when} |" for name, when in own.items())
