"""The keys of every stanza and what their values may be; the reference page is made of this."""

from __future__ import annotations

from headgate.config.check import (
    Check,
    anything,
    count,
    count_or_null,
    either,
    flag,
    flag_or_auto,
    many,
    mapping,
    named,
    one_of,
    regex,
    text,
    text_or_null,
    word,
)

_JOB_NAMES = many(text)
_PLAYBOOKS = many(named({"semaphores": many(text), "cleanup": flag}))
_FILTERS = many(either(text, mapping))

JOB: dict[str, Check] = {
    "name": text,
    "parent": text_or_null,
    "description": text,
    "variant-description": text,
    "final": flag,
    "abstract": flag,
    "intermediate": flag,
    "protected": flag,
    "type": one_of("regular", "initializer", "reporter"),
    "voting": flag,
    "hold-following-changes": flag,
    "success-message": text,
    "failure-message": text,
    "success-url": text,
    "failure-url": text,
    "tags": _JOB_NAMES,
    "provides": _JOB_NAMES,
    "requires": _JOB_NAMES,
    "dependencies": many(named({"soft": flag})),
    "files": many(regex),
    "irrelevant-files": many(regex),
    "match-on-config-updates": flag,
    "deduplicate": flag_or_auto,
    "branches": many(regex),
    "attribute-control": mapping,
    "run": _PLAYBOOKS,
    "pre-run": _PLAYBOOKS,
    "post-run": _PLAYBOOKS,
    "cleanup-run": _PLAYBOOKS,
    "roles": many(mapping),
    "secrets": many(named({"secret": text, "pass-to-parent": flag})),
    "secret-exposure": one_of("ignore", "redact", "fail"),
    "nodeset": either(text, mapping),
    "pre-timeout": count(1),
    "timeout": count(1),
    "post-timeout": count(1),
    "attempts": count(1),
    "semaphore": many(named({"resources-first": flag})),
    "semaphores": many(named({"resources-first": flag})),
    "required-projects": many(named({"override-checkout": text, "override-branch": text})),
    "include-projects": _FILTERS,
    "exclude-projects": _FILTERS,
    "vars": mapping,
    "extra-vars": mapping,
    "host-vars": mapping,
    "group-vars": mapping,
    "include-vars": many(either(text, mapping)),
    "allowed-projects": many(text),
    "post-review": flag,
    "override-checkout": text,
    "override-branch": text,
    "ansible-version": word,
    "ansible-split-streams": flag,
    "workspace-scheme": one_of("golang", "flat", "unique"),
    "workspace-checkout": flag_or_auto,
    "failure-output": many(text),
    "image-build-name": text,
    "preserve-home-paths": many(text),
}

PIPELINE: dict[str, Check] = {
    "name": text,
    "manager": one_of("independent", "dependent", "serial", "supercedent"),
    "description": text,
    "trigger": mapping,
    "require": mapping,
    "reject": mapping,
    "success": mapping,
    "failure": mapping,
    "merge-conflict": mapping,
    "config-error": mapping,
    "start": mapping,
    "enqueue": mapping,
    "no-jobs": mapping,
    "disabled": mapping,
    "dequeue": mapping,
    "success-message": text,
    "failure-message": text,
    "start-message": text,
    "enqueue-message": text,
    "no-jobs-message": text,
    "merge-conflict-message": text,
    "dequeue-message": text,
    "footer-message": text,
    "precedence": one_of("high", "normal", "low"),
    "supercedes": many(text),
    "post-review": flag,
    "allow-other-connections": flag,
    "allow-parameters": flag,
    "dequeue-on-new-patchset": flag,
    "ignore-dependencies": flag,
    "disable-after-consecutive-failures": count(1),
    "window": count(0),
    "window-floor": count(1),
    "window-ceiling": count_or_null(1),
    "window-increase-type": one_of("linear", "exponential"),
    "window-increase-factor": count(1),
    "window-decrease-type": one_of("linear", "exponential"),
    "window-decrease-factor": count(1),
}

PROJECT: dict[str, Check] = {
    "name": text,
    "description": text,
    "branches": many(regex),
    "templates": many(text),
    "default-branch": text,
    "merge-mode": one_of("merge", "merge-resolve", "cherry-pick", "squash-merge", "rebase", "rebase-first-parent"),
    "queue": text,
    "vars": mapping,
}
TEMPLATE: dict[str, Check] = {k: PROJECT[k] for k in ("name", "description", "queue", "vars")}
"""Every other key of a project or a template names a pipeline."""

PROJECT_PIPELINE: dict[str, Check] = {
    "jobs": many(either(text, mapping)),
    "debug": flag,
    "fail-fast": flag,
    "parameters": anything,
}

QUEUE: dict[str, Check] = {
    "name": text,
    "type": one_of("all-branches", "per-branch", "branch-assigned"),
    "per-branch": flag,
    "allow-circular-dependencies": flag,
    "dependencies-by-topic": flag,
}
SEMAPHORE: dict[str, Check] = {"name": text, "max": count(1)}
NODESET: dict[str, Check] = {
    "name": text,
    "nodes": many(mapping),
    "groups": many(mapping),
    "alternatives": many(either(text, mapping)),
}
NODE: dict[str, Check] = {"name": many(text), "label": text}
GROUP: dict[str, Check] = {"name": text, "nodes": many(text)}
SECRET: dict[str, Check] = {"name": text, "data": mapping, "oidc": anything}
PRAGMA: dict[str, Check] = {"implied-branch-matchers": flag, "implied-branches": many(regex)}
PROVIDER_KINDS = ("image", "flavor", "label", "section", "provider")
"""Accepted and set aside: nodes come from elsewhere."""

KINDS = ("pipeline", "job", "project", "project-template", "nodeset", "secret", "semaphore", "queue", "pragma")

TRIGGER: dict[str, Check] = {
    "event": many(one_of("change-proposed", "change-approved", "change-abandoned", "ref-updated")),
    "branch": many(regex),
    "ref": many(regex),
    "ignore-deletes": flag,
    "debug": flag,
}
REQUIRE: dict[str, Check] = {"approved": flag, "open": flag, "current-patchset": flag}
REPORTER: dict[str, Check] = {"note": flag, "land": flag}

TENANT: dict[str, Check] = {
    "name": text,
    "source": mapping,
    "max-dependencies": count(1),
    "max-changes-per-pipeline": count(1),
    "max-nodes-per-job": count(-1),
    "max-job-timeout": count(-1),
    "default-parent": text,
    "default-ansible-version": word,
    "exclude-unprotected-branches": flag,
    "exclude-locked-branches": flag,
    "allowed-triggers": many(text),
    "allowed-reporters": many(text),
    "allowed-labels": many(regex),
    "disallowed-labels": many(regex),
    "use-nodepool": flag,
    "web-root": text,
    "semaphores": many(text),
    "report-build-page": flag,
    "allow-circular-dependencies": flag,
}
TENANT_SOURCE: dict[str, Check] = {
    "config-projects": many(either(text, mapping)),
    "untrusted-projects": many(either(text, mapping)),
}
TENANT_PROJECT: dict[str, Check] = {
    "include": many(text),
    "exclude": many(text),
    "shadow": many(text),
    "include-branches": many(text),
    "exclude-branches": many(text),
    "exclude-unprotected-branches": flag,
    "exclude-locked-branches": flag,
    "always-dynamic-branches": many(text),
    "implied-branch-matchers": flag,
    "extra-config-paths": many(text),
    "load-branch": text,
    "allow-base-jobs": flag,
    "configure-projects": many(regex),
    "allow-reporter-jobs": flag,
    "include-provider-config": flag,
    "projects": many(either(text, mapping)),
}
