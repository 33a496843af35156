"""Declare the keys of the tenant file."""

from __future__ import annotations

from typing import Any

from headgate.config.files import checks
from headgate.config.keys.nodes import AMOUNTS
from headgate.config.keys.objects import CONFIG_KINDS, NO_TOKENS, NODEPOOL_KINDS

FILE_KINDS = ("tenant", "global-semaphore", "authorization-rule", "admin-rule", "role", "api-root")
CONFIG_PROJECT_KINDS = (*CONFIG_KINDS, *NODEPOOL_KINDS)
_KIND = checks.many(checks.one_of(*CONFIG_PROJECT_KINDS))
_ENTRIES = checks.many(checks.either(checks.text, checks.mapping))
_TEXTS = checks.many(checks.text)

_PROTECTED = "untrusted projects; by the branch rules of GitHub and Gitea; elsewhere all branches count as protected"
_LOCKED = "untrusted projects; GitHub reports read-only branches as locked; elsewhere no branch is"

LABEL: checks.Keys = {
    "name": checks.StanzaKey(checks.text, required=True),
    "search": checks.StanzaKey(
        checks.text, required=True, note="a filter, as for `headgate inventory machine list --filter`"
    ),
    "project": checks.StanzaKey(
        checks.text, required=True, note="the project of the inventory that owns the machines; `*`: any"
    ),
    "partition": checks.StanzaKey(checks.text, "the one named like the executor's zone, or all"),
    "triggering": checks.StanzaKey(checks.flag, "false", "only the machine that started the item"),
}


def _of_projects(value: Any, spot: checks.ValueSpot) -> None:
    checks.mapping.see(value, spot)
    for name, most in value.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < -1:
            raise spot.wrong(f"must have a whole number of at least -1 for {name}, not {checks.show(most)}")


NODES_OF_PROJECTS = checks.Check("project: number", _of_projects, schema=checks.mapping.schema)

TENANT: checks.Keys = {
    "name": checks.StanzaKey(checks.text, required=True),
    "source": checks.StanzaKey(checks.mapping, "{}", "connection -> config-projects, untrusted-projects"),
    "max-dependencies": checks.StanzaKey(checks.count(0), "no limit"),
    "max-changes-per-pipeline": checks.StanzaKey(checks.count(1), "no limit"),
    "max-nodes-per-job": checks.StanzaKey(checks.count(-1), "5", "-1: no limit"),
    "max-nodes-per-project": checks.StanzaKey(
        checks.either(checks.count(-1), NODES_OF_PROJECTS),
        "-1",
        "at a time, for all builds of a project; -1: no limit; or project: number, and `default` for all others",
    ),
    "resource-limits": checks.StanzaKey(
        AMOUNTS, "none", "kind: number, for all machines that its builds use at a time"
    ),
    "labels": checks.StanzaKey(
        checks.many(checks.inner(LABEL, "label")), "none", "machines of the inventory that jobs can request"
    ),
    "max-job-timeout": checks.StanzaKey(checks.count(-1), "10800", "seconds; -1: no limit"),
    "max-oidc-ttl": checks.StanzaKey(checks.count(1), "10800", "seconds"),
    "default-oidc-ttl": checks.StanzaKey(checks.count(1), "3600", "seconds", idle=NO_TOKENS),
    "allowed-oidc-issuers": checks.StanzaKey(_TEXTS, "none"),
    "exclude-unprotected-branches": checks.StanzaKey(checks.flag, "false", _PROTECTED),
    "exclude-locked-branches": checks.StanzaKey(checks.flag, "false", _LOCKED),
    "default-parent": checks.StanzaKey(checks.text, "base"),
    "default-ansible-version": checks.StanzaKey(checks.word, "what the executor has installed"),
    "allowed-triggers": checks.StanzaKey(_TEXTS, "all"),
    "allowed-reporters": checks.StanzaKey(_TEXTS, "all"),
    "allowed-labels": checks.StanzaKey(checks.many(checks.regex), "all"),
    "disallowed-labels": checks.StanzaKey(checks.many(checks.regex), "none"),
    "use-nodepool": checks.StanzaKey(checks.flag, "true", "false: every label must be defined"),
    "web-root": checks.StanzaKey(checks.text, "the one for all tenants", idle="URLs in reports begin with [web] root"),
    "admin-rules": checks.StanzaKey(_TEXTS, "none"),
    "access-rules": checks.StanzaKey(_TEXTS, "none"),
    "role-mappings": checks.StanzaKey(checks.mapping, "none", "rule -> roles"),
    "anonymous-read-access": checks.StanzaKey(checks.flag, "true"),
    "authentication-realm": checks.StanzaKey(checks.text),
    "semaphores": checks.StanzaKey(_TEXTS, "none", "global semaphores"),
    "allow-circular-dependencies": checks.StanzaKey(checks.flag, idle="set it in queues"),
    "report-build-page": checks.StanzaKey(
        checks.flag, idle="reports name the page of a build unless the build returned a URL"
    ),
}
SOURCE: checks.Keys = {"config-projects": checks.StanzaKey(_ENTRIES), "untrusted-projects": checks.StanzaKey(_ENTRIES)}

PROJECT: checks.Keys = {
    "include": checks.StanzaKey(_KIND, "all kinds allowed there", "replaces the group's"),
    "include-provider-config": checks.StanzaKey(checks.flag, "false", f"adds {', '.join(NODEPOOL_KINDS)}"),
    "exclude": checks.StanzaKey(_KIND, "none"),
    "shadow": checks.StanzaKey(_TEXTS, "none", "jobs of these projects take precedence, without an error"),
    "exclude-unprotected-branches": checks.StanzaKey(checks.flag, "as the tenant", _PROTECTED),
    "exclude-locked-branches": checks.StanzaKey(checks.flag, "as the tenant", _LOCKED),
    "include-branches": checks.StanzaKey(
        checks.many(checks.regex), "all", "whole names; takes precedence over exclude-branches"
    ),
    "exclude-branches": checks.StanzaKey(checks.many(checks.regex), "none", "whole names"),
    "always-dynamic-branches": checks.StanzaKey(checks.many(checks.regex), "none", "whole names"),
    "implied-branch-matchers": checks.StanzaKey(checks.flag, "see below"),
    "extra-config-paths": checks.StanzaKey(_TEXTS, "none", "a directory ends with /"),
    "load-branch": checks.StanzaKey(checks.text, "master", "config-projects"),
    "allow-base-jobs": checks.StanzaKey(checks.flag, "true", "config-projects"),
    "configure-projects": checks.StanzaKey(checks.many(checks.regex), "none", "untrusted projects; whole names"),
    "allow-reporter-jobs": checks.StanzaKey(checks.flag, "true for config-projects only"),
}
GROUP: checks.Keys = {"projects": checks.StanzaKey(_ENTRIES, required=True), **PROJECT}

SEMAPHORE: checks.Keys = {
    "name": checks.StanzaKey(checks.text, required=True),
    "max": checks.StanzaKey(checks.count(0), "1"),
}
RULE: checks.Keys = {
    "name": checks.StanzaKey(checks.text, required=True),
    "conditions": checks.StanzaKey(checks.many(checks.mapping), required=True),
}
_REQUEST = checks.StanzaKey(
    checks.either(
        checks.flag, checks.inner({"conditions": checks.StanzaKey(checks.many(checks.mapping))}, "permission")
    ),
    "false",
)
PERMISSIONS: checks.Keys = {
    "read": checks.StanzaKey(checks.flag, "false"),
    "promote": checks.StanzaKey(checks.flag, "false"),
    "set-tenant-state": checks.StanzaKey(checks.flag, "false"),
    "autohold": checks.StanzaKey(checks.flag, "false"),
    "modify-node": checks.StanzaKey(checks.flag, "false", "machines that Headgate creates"),
    "build-image": checks.StanzaKey(checks.flag, "false", "request a build of an image"),
    "upload-image": checks.StanzaKey(checks.flag, "false", "retry a failed upload"),
    "delete-image-build-artifact": checks.StanzaKey(checks.flag, "false"),
    "delete-image-upload": checks.StanzaKey(checks.flag, "false"),
    "validate-image-upload": checks.StanzaKey(checks.flag, "false", "validate an upload again"),
    "modify-nodeset-request": checks.StanzaKey(checks.flag, "false", "make a build stop waiting for machines"),
    "dequeue": _REQUEST,
    "enqueue": _REQUEST,
    "enqueue-unapproved": _REQUEST,
    "approve": _REQUEST,
    "comment": _REQUEST,
}
ROLE: checks.Keys = {
    "name": checks.StanzaKey(checks.text, required=True),
    "permissions": checks.StanzaKey(checks.inner(PERMISSIONS, "role's permissions"), "{}"),
}
API_ROOT: checks.Keys = {
    "authentication-realm": checks.StanzaKey(checks.text),
    "access-rules": checks.StanzaKey(_TEXTS, "none"),
    "anonymous-read-access": checks.StanzaKey(checks.flag, "true"),
    "role-mappings": checks.StanzaKey(checks.mapping, "none"),
}
