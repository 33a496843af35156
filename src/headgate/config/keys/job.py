"""Declare the attributes of a job, and how variants merge them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.config.files import checks


class MergeRule(StrEnum):
    """State how the value of a later variant is combined with the value so far."""

    LAST = "the last one wins"
    UNION = "combined; `!override` replaces"
    REPLACE = "replaced; `!inherit` combines"
    ANEW = "replaced"
    ADD = "combined"
    DEEP = "merged deeply; `!override` replaces"
    APPEND = "appended without duplicates; `!override` replaces"
    OUTSIDE_IN = "appended"
    INSIDE_OUT = "prepended"
    BY_NAME = "merged by name"
    BY_PROJECT = "merged by project; `!override` clears first"
    NARROW = "only what all variants name"
    STICKY = "cannot be unset"
    OWN = "for this variant only"


@dataclass(frozen=True, slots=True)
class JobKey(checks.StanzaKey):
    merge: MergeRule = MergeRule.LAST
    context: bool = False
    """Whether it may be set on a final job, because it does not change how the job runs."""
    control: bool = False
    """Whether attribute-control may name it."""
    field: str = ""
    """Field of `FrozenJob` that takes the value of the last variant unchanged; empty if `freeze/mix` computes it."""


def _key(
    check: checks.Check, merge: MergeRule = MergeRule.LAST, default: str = "", note: str = "", *, context: bool = False,
    control: bool = False, idle: str = "", field: str = "",
) -> JobKey:  # fmt: skip
    return JobKey(check, default, note, idle=idle, merge=merge, context=context, control=control, field=field)


def _override(check: checks.Check) -> checks.Check:
    return checks.tagged(check, "override")


def _inherit(check: checks.Check) -> checks.Check:
    return checks.tagged(check, "inherit", "override")


_TEXTS = checks.many(checks.text)
PLAYBOOK = {"semaphores": checks.StanzaKey(_TEXTS), "cleanup": checks.StanzaKey(checks.flag)}
SEMAPHORE = {"resources-first": checks.StanzaKey(checks.flag)}
IMAGE = {"build": checks.StanzaKey(checks.text, required=True)}
FILTER = {
    "type": checks.StanzaKey(checks.one_of("name", "change", "item"), required=True),
    "name": checks.StanzaKey(checks.text),
}
_NO_GALAXY = "Headgate fetches no roles from Ansible Galaxy"
GALAXY = {
    "galaxy": checks.StanzaKey(checks.text, required=True, idle=_NO_GALAXY),
    "name": checks.StanzaKey(checks.text, idle=_NO_GALAXY),
}
ROLE = {"zuul": checks.StanzaKey(checks.text, required=True), "name": checks.StanzaKey(checks.text)}
REQUIRED = {"override-checkout": checks.StanzaKey(checks.text), "override-branch": checks.StanzaKey(checks.text)}
VARIABLES_FILE = {
    "project": checks.StanzaKey(checks.text),
    "zuul-project": checks.StanzaKey(checks.flag),
    "use-ref": checks.StanzaKey(checks.flag),
    "required": checks.StanzaKey(checks.flag),
}
SECRET = {"secret": checks.StanzaKey(checks.text), "pass-to-parent": checks.StanzaKey(checks.flag)}
DEPENDENCY = {"soft": checks.StanzaKey(checks.flag)}
# Only playbooks of post-run may be marked as a cleanup, which also runs when the build is aborted.
_BOOKS = checks.many(checks.named({"semaphores": checks.StanzaKey(_TEXTS)}, "playbook"))
_POST_BOOKS = checks.many(checks.named(PLAYBOOK, "playbook"))
_SEMAPHORES = checks.many(checks.named(SEMAPHORE, "semaphore of a job"))
_FILTERS = checks.many(
    checks.either(
        checks.text,
        checks.inner(FILTER, "project filter"),
    )
)
# `either` reports the error of its last form, so the usual form is last.
_ROLES = checks.many(
    checks.either(
        checks.inner(GALAXY, "role"),
        checks.inner(ROLE, "role"),
    )
)
_REQUIRED = checks.many(checks.named(REQUIRED, "required project"))
_INCLUDE_VARS = checks.many(
    checks.named(
        VARIABLES_FILE,
        "variables file",
    )
)
_SECRETS = checks.many(checks.named(SECRET, "secret of a job"))

_RETURNED = "a job returns the URL of its log as `zuul.log_url`"
_FILTERED = "which of the changes' projects are in the work directory; required projects always are"
_HOME = "playbooks with the same rights share a home directory that is never cleared and that no others see"
_IMAGE = "for the container of untrusted programs: `REGISTRY/NAME:TAG`, or `build` with a file; not in Zuul"
_REUSED = "do not repeat a successful build with the same inputs; the job gets only repositories it names; not in Zuul"
_UNLIMITED = "seconds; 0 or less: the executor's limit"
# The versions that Zuul 14.3 accepts.
ANSIBLE_VERSIONS = ("9", "11")
ANSIBLE_DEFAULT = ANSIBLE_VERSIONS[-1]
"""Version for jobs and tenants that set none."""
HOME_PATHS_FORBIDDEN = (".ssh/config", ".kube/config")
# Ansible obeys the last five: with `ansible_connection: local`, the tasks for a machine would run on the executor.
RESERVED_VARS = frozenset(
    [
        "zuul",
        "zuul_node",
        "nodepool",
        "unsafe_vars",
        "zuul_user_dir",
        "ansible_connection",
        "ansible_host",
        "ansible_python_interpreter",
        "ansible_shell_executable",
        "ansible_user",
    ]
)

JOB: dict[str, JobKey] = {
    "name": _key(checks.name, MergeRule.OWN, context=True),
    "parent": _key(checks.text_or_null, MergeRule.OWN, "the tenant's default-parent", "null: a base job"),
    "description": _key(checks.text, MergeRule.OWN, context=True),
    "variant-description": _key(checks.text, MergeRule.OWN, context=True),
    "final": _key(checks.flag, MergeRule.STICKY, "false", context=True),
    "abstract": _key(
        checks.flag, MergeRule.STICKY, "false", "not inherited by children with another name", context=True
    ),
    "intermediate": _key(
        checks.flag, MergeRule.STICKY, "false", "must also be abstract, as must its children", context=True
    ),
    "protected": _key(
        checks.flag, MergeRule.STICKY, "false", "other projects may not change how it is executed", context=True
    ),
    "type": _key(checks.one_of("regular", "initializer", "reporter"), default="regular", control=True, field="type"),
    "voting": _key(checks.flag, default="true", context=True, control=True, field="voting"),
    "hold-following-changes": _key(checks.flag, default="false", context=True, field="hold_following_changes"),
    "success-message": _key(checks.text, default="SUCCESS", context=True, field="success_message"),
    "failure-message": _key(checks.text, default="the result", context=True, field="failure_message"),
    "success-url": _key(checks.text, MergeRule.OWN, context=True, idle=_RETURNED),
    "failure-url": _key(checks.text, MergeRule.OWN, context=True, idle=_RETURNED),
    "tags": _key(_override(_TEXTS), MergeRule.UNION, context=True, control=True),
    "provides": _key(_override(_TEXTS), MergeRule.UNION, context=True, control=True),
    "requires": _key(_override(_TEXTS), MergeRule.UNION, context=True, control=True),
    "dependencies": _key(
        _inherit(checks.many(checks.named(DEPENDENCY, "dependency"))), MergeRule.REPLACE, context=True, control=True
    ),
    "files": _key(_inherit(checks.many(checks.regex)), MergeRule.REPLACE, context=True, control=True),
    "irrelevant-files": _key(_inherit(checks.many(checks.regex)), MergeRule.REPLACE, context=True, control=True),
    "match-on-config-updates": _key(checks.flag, default="true", context=True),
    "deduplicate": _key(
        checks.flag_or_auto,
        default="auto",
        note="equal jobs of changes that depend on each other run only once",
        context=True,
        field="deduplicate",
    ),
    "branches": _key(checks.many(checks.regex), MergeRule.OWN, "the branch it is defined on, see below", context=True),
    "attribute-control": _key(checks.mapping, MergeRule.STICKY, context=True),
    "run": _key(_BOOKS, MergeRule.ANEW, control=True),
    "pre-run": _key(_BOOKS, MergeRule.OUTSIDE_IN, control=True),
    "post-run": _key(_POST_BOOKS, MergeRule.INSIDE_OUT, control=True),
    "cleanup-run": _key(_BOOKS, MergeRule.INSIDE_OUT, note="deprecated: post-run with `cleanup: true`"),
    "roles": _key(_ROLES, MergeRule.INSIDE_OUT, "the repository itself", "galaxy is accepted and ignored"),
    "secrets": _key(_SECRETS, MergeRule.OWN, note="only for the playbooks of the same variant"),
    "secret-exposure": _key(
        checks.one_of("ignore", "redact", "fail"), MergeRule.STICKY, "ignore", "variants may not differ"
    ),
    "nodeset": _key(checks.either(checks.mapping, checks.text), default="empty"),
    # As in Zuul, numbers below 1 are accepted for timeouts and attempts.
    "pre-timeout": _key(checks.integer, note=_UNLIMITED, field="pre_timeout_s"),
    "timeout": _key(checks.integer, note=_UNLIMITED, field="timeout_s"),
    "post-timeout": _key(checks.integer, note=_UNLIMITED, field="post_timeout_s"),
    "attempts": _key(checks.integer, default="3", note="at least 1; at most 10 are made", field="attempts_max"),
    "reuse": _key(checks.flag, default="the pipeline's", note=_REUSED, control=True, field="reuse"),
    "semaphore": _key(_SEMAPHORES, MergeRule.BY_NAME),
    "semaphores": _key(_SEMAPHORES, MergeRule.BY_NAME),
    "required-projects": _key(_override(_REQUIRED), MergeRule.BY_PROJECT, control=True),
    "include-projects": _key(_override(_FILTERS), MergeRule.UNION, "all", _FILTERED, control=True),
    "exclude-projects": _key(_override(_FILTERS), MergeRule.UNION, "none", control=True),
    "vars": _key(_override(checks.mapping), MergeRule.DEEP, control=True),
    "extra-vars": _key(_override(checks.mapping), MergeRule.DEEP, control=True),
    "host-vars": _key(_override(checks.mapping), MergeRule.DEEP, control=True),
    "group-vars": _key(_override(checks.mapping), MergeRule.DEEP, control=True),
    "include-vars": _key(_override(_INCLUDE_VARS), MergeRule.APPEND, control=True),
    "allowed-projects": _key(_TEXTS, MergeRule.NARROW, "all"),
    "post-review": _key(checks.flag, MergeRule.STICKY, "false"),
    "override-checkout": _key(checks.text),
    "override-branch": _key(checks.text, note="old name of override-checkout"),
    "ansible-version": _key(
        checks.word, default="the tenant's default-ansible-version", note="9 or 11; see `headgate ansible install`"
    ),
    "ansible-split-streams": _key(
        checks.flag,
        default="true",
        note="false: a task registers stderr together with stdout, in order",
        field="ansible_split_streams",
    ),
    "workspace-scheme": _key(checks.one_of("golang", "flat", "unique"), default="golang", field="workspace_scheme"),
    "workspace-checkout": _key(
        checks.flag_or_auto, default="true", note="auto: only for jobs without nodes", field="workspace_checkout"
    ),
    "image": _key(checks.either(checks.text, checks.inner(IMAGE, "image")), note=_IMAGE),
    "failure-output": _key(_override(_TEXTS), MergeRule.UNION, control=True),
    "image-build-name": _key(
        checks.text,
        note="an image of type zuul; what the job returns as zuul_image becomes this image",
        field="image_build_name",
    ),
    "preserve-home-paths": _key(_TEXTS, MergeRule.ADD, idle=_HOME),
}
CONTROLLED = frozenset(name for name, key in JOB.items() if key.control)
EXECUTION = frozenset(name for name, key in JOB.items() if not key.context)
