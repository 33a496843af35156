"""Declare the keys of the tenant file."""

from __future__ import annotations

from typing import Any

from headgate.config.files.check import (
    Check,
    Keys,
    StanzaKey,
    ValueSpot,
    count,
    either,
    flag,
    inner,
    many,
    mapping,
    one_of,
    regex,
    show,
    text,
    word,
)
from headgate.config.keys.nodes import AMOUNTS
from headgate.config.keys.objects import CONFIG_KINDS, NO_TOKENS, NODEPOOL_KINDS

FILE_KINDS = ("tenant", "global-semaphore", "authorization-rule", "admin-rule", "role", "api-root")
CONFIG_PROJECT_KINDS = (*CONFIG_KINDS, *NODEPOOL_KINDS)
_KIND = many(one_of(*CONFIG_PROJECT_KINDS))
_ENTRIES = many(either(text, mapping))
_TEXTS = many(text)

_PROTECTED = "untrusted projects; GitHub and Gitea say which are, by their rules. Elsewhere all branches are"
_LOCKED = "untrusted projects; GitHub says which are: read-only ones. Elsewhere no branch is"

LABEL: Keys = {
    "name": StanzaKey(text, required=True),
    "search": StanzaKey(text, required=True, note="a filter, as `headgate inventory machine list --filter` takes"),
    "project": StanzaKey(text, required=True, note="of the inventory, whose machines they are; `*`: everybody's"),
    "partition": StanzaKey(text, "the executor's zone, or all"),
    "triggering": StanzaKey(flag, "false", "only the machine that started the item"),
}


def _of_projects(value: Any, spot: ValueSpot) -> None:
    mapping.see(value, spot)
    for name, most in value.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < -1:
            raise spot.wrong(f"says of {name} a whole number of at least -1, not {show(most)}")


NODES_OF_PROJECTS = Check("project: number", _of_projects, schema=mapping.schema)

TENANT: Keys = {
    "name": StanzaKey(text, required=True),
    "source": StanzaKey(mapping, "{}", "connection -> config-projects, untrusted-projects"),
    "max-dependencies": StanzaKey(count(0), "no limit"),
    "max-changes-per-pipeline": StanzaKey(count(1), "no limit"),
    "max-nodes-per-job": StanzaKey(count(-1), "5", "-1: no limit"),
    "max-nodes-per-project": StanzaKey(
        either(count(-1), NODES_OF_PROJECTS),
        "-1",
        "at a time, of all its builds; -1: no limit; or project: number, where `default` is that of all others",
    ),
    "resource-limits": StanzaKey(AMOUNTS, "none", "kind: number, of all machines that its builds have at a time"),
    "labels": StanzaKey(many(inner(LABEL, "label")), "none", "machines of the inventory that jobs can ask for"),
    "max-job-timeout": StanzaKey(count(-1), "10800", "seconds; -1: no limit"),
    "max-oidc-ttl": StanzaKey(count(1), "10800", "seconds"),
    "default-oidc-ttl": StanzaKey(count(1), "3600", "seconds", idle=NO_TOKENS),
    "allowed-oidc-issuers": StanzaKey(_TEXTS, "none"),
    "exclude-unprotected-branches": StanzaKey(flag, "false", _PROTECTED),
    "exclude-locked-branches": StanzaKey(flag, "false", _LOCKED),
    "default-parent": StanzaKey(text, "base"),
    "default-ansible-version": StanzaKey(word, "what the executor has installed"),
    "allowed-triggers": StanzaKey(_TEXTS, "all"),
    "allowed-reporters": StanzaKey(_TEXTS, "all"),
    "allowed-labels": StanzaKey(many(regex), "all"),
    "disallowed-labels": StanzaKey(many(regex), "none"),
    "use-nodepool": StanzaKey(flag, "true", "false: every label must be defined"),
    "web-root": StanzaKey(text, "of the whole", idle="addresses in reports begin with [web] root"),
    "admin-rules": StanzaKey(_TEXTS, "none"),
    "access-rules": StanzaKey(_TEXTS, "none"),
    "role-mappings": StanzaKey(mapping, "none", "rule -> roles"),
    "anonymous-read-access": StanzaKey(flag, "true"),
    "authentication-realm": StanzaKey(text),
    "semaphores": StanzaKey(_TEXTS, "none", "global semaphores"),
    "allow-circular-dependencies": StanzaKey(flag, idle="queues say it"),
    "report-build-page": StanzaKey(flag, idle="reports name the page of a build unless it returned an address"),
}
SOURCE: Keys = {"config-projects": StanzaKey(_ENTRIES), "untrusted-projects": StanzaKey(_ENTRIES)}

PROJECT: Keys = {
    "include": StanzaKey(_KIND, "all that may be there", "replaces the group's"),
    "include-provider-config": StanzaKey(flag, "false", f"adds {', '.join(NODEPOOL_KINDS)}"),
    "exclude": StanzaKey(_KIND, "none"),
    "shadow": StanzaKey(_TEXTS, "none", "jobs of these projects win silently"),
    "exclude-unprotected-branches": StanzaKey(flag, "as the tenant", _PROTECTED),
    "exclude-locked-branches": StanzaKey(flag, "as the tenant", _LOCKED),
    "include-branches": StanzaKey(many(regex), "all", "whole names; beats exclude-branches"),
    "exclude-branches": StanzaKey(many(regex), "none", "whole names"),
    "always-dynamic-branches": StanzaKey(many(regex), "none", "whole names"),
    "implied-branch-matchers": StanzaKey(flag, "see below"),
    "extra-config-paths": StanzaKey(_TEXTS, "none", "a directory ends with /"),
    "load-branch": StanzaKey(text, "master", "config-projects"),
    "allow-base-jobs": StanzaKey(flag, "true", "config-projects"),
    "configure-projects": StanzaKey(many(regex), "none", "untrusted projects; whole names"),
    "allow-reporter-jobs": StanzaKey(flag, "config-projects may, others not"),
}
GROUP: Keys = {"projects": StanzaKey(_ENTRIES, required=True), **PROJECT}

SEMAPHORE: Keys = {"name": StanzaKey(text, required=True), "max": StanzaKey(count(0), "1")}
RULE: Keys = {"name": StanzaKey(text, required=True), "conditions": StanzaKey(many(mapping), required=True)}
_REQUEST = StanzaKey(either(flag, inner({"conditions": StanzaKey(many(mapping))}, "permission")), "false")
PERMISSIONS: Keys = {
    "read": StanzaKey(flag, "false"),
    "promote": StanzaKey(flag, "false"),
    "set-tenant-state": StanzaKey(flag, "false"),
    "autohold": StanzaKey(flag, "false"),
    "modify-node": StanzaKey(flag, "false", "machines that are made"),
    "build-image": StanzaKey(flag, "false", "ask for a build of an image"),
    "upload-image": StanzaKey(flag, "false", "have an upload that failed tried again"),
    "delete-image-build-artifact": StanzaKey(flag, "false"),
    "delete-image-upload": StanzaKey(flag, "false"),
    "validate-image-upload": StanzaKey(flag, "false", "have an upload validated again"),
    "modify-nodeset-request": StanzaKey(flag, "false", "have a build that waits for machines wait no more"),
    "dequeue": _REQUEST,
    "enqueue": _REQUEST,
    "enqueue-unapproved": _REQUEST,
    "approve": _REQUEST,
    "comment": _REQUEST,
}
ROLE: Keys = {
    "name": StanzaKey(text, required=True),
    "permissions": StanzaKey(inner(PERMISSIONS, "role's permissions"), "{}"),
}
API_ROOT: Keys = {
    "authentication-realm": StanzaKey(text),
    "access-rules": StanzaKey(_TEXTS, "none"),
    "anonymous-read-access": StanzaKey(flag, "true"),
    "role-mappings": StanzaKey(mapping, "none"),
}
