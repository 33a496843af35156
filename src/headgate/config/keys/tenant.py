"""The keys of the tenant file (config-language §2)."""

from __future__ import annotations

from typing import Any

from headgate.config.keys.nodes import AMOUNTS
from headgate.config.keys.objects import CONFIG_KINDS, NO_TOKENS, NODEPOOL_KINDS
from headgate.config.reading.check import (
    Check,
    Key,
    Keys,
    Spot,
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

FILE_KINDS = ("tenant", "global-semaphore", "authorization-rule", "admin-rule", "role", "api-root")
CONFIG_PROJECT_KINDS = (*CONFIG_KINDS, *NODEPOOL_KINDS)
_KIND = many(one_of(*CONFIG_PROJECT_KINDS))
_ENTRIES = many(either(text, mapping))
_TEXTS = many(text)

_PROTECTED = "untrusted projects; GitHub and Gitea say which are, by their rules. Elsewhere all branches are"
_LOCKED = "untrusted projects; GitHub says which are: read-only ones. Elsewhere no branch is"

LABEL: Keys = {
    "name": Key(text, required=True),
    "search": Key(text, required=True, note="a filter, as `headgate inventory machine list --filter` takes"),
    "project": Key(text, required=True, note="of the inventory, whose machines they are; `*`: everybody's"),
    "partition": Key(text, "the executor's zone, or all"),
    "triggering": Key(flag, "false", "only the machine that started the item"),
}


def _of_projects(value: Any, spot: Spot) -> None:
    mapping.see(value, spot)
    for name, most in value.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < -1:
            raise spot.wrong(f"says of {name} a whole number of at least -1, not {show(most)}")


NODES_OF_PROJECTS = Check("project: number", _of_projects, schema=mapping.schema)

TENANT: Keys = {
    "name": Key(text, required=True),
    "source": Key(mapping, "{}", "connection -> config-projects, untrusted-projects"),
    "max-dependencies": Key(count(0), "no limit"),
    "max-changes-per-pipeline": Key(count(1), "no limit"),
    "max-nodes-per-job": Key(count(-1), "5", "-1: no limit"),
    "max-nodes-per-project": Key(
        either(count(-1), NODES_OF_PROJECTS),
        "-1",
        "at a time, of all its builds; -1: no limit; or project: number, where `default` is that of all others",
    ),
    "resource-limits": Key(AMOUNTS, "none", "kind: number, of all machines that its builds have at a time"),
    "labels": Key(many(inner(LABEL, "label")), "none", "machines of the inventory that jobs can ask for"),
    "max-job-timeout": Key(count(-1), "10800", "seconds; -1: no limit"),
    "max-oidc-ttl": Key(count(1), "10800", "seconds"),
    "default-oidc-ttl": Key(count(1), "3600", "seconds", idle=NO_TOKENS),
    "allowed-oidc-issuers": Key(_TEXTS, "none"),
    "exclude-unprotected-branches": Key(flag, "false", _PROTECTED),
    "exclude-locked-branches": Key(flag, "false", _LOCKED),
    "default-parent": Key(text, "base"),
    "default-ansible-version": Key(word, "what the executor has installed"),
    "allowed-triggers": Key(_TEXTS, "all"),
    "allowed-reporters": Key(_TEXTS, "all"),
    "allowed-labels": Key(many(regex), "all"),
    "disallowed-labels": Key(many(regex), "none"),
    "use-nodepool": Key(flag, "true", "false: every label must be defined"),
    "web-root": Key(text, "of the whole", idle="addresses in reports begin with [web] root"),
    "admin-rules": Key(_TEXTS, "none"),
    "access-rules": Key(_TEXTS, "none"),
    "role-mappings": Key(mapping, "none", "rule -> roles"),
    "anonymous-read-access": Key(flag, "true"),
    "authentication-realm": Key(text),
    "semaphores": Key(_TEXTS, "none", "global semaphores"),
    "allow-circular-dependencies": Key(flag, idle="queues say it"),
    "report-build-page": Key(flag, idle="reports name the page of a build unless it returned an address"),
}
SOURCE: Keys = {"config-projects": Key(_ENTRIES), "untrusted-projects": Key(_ENTRIES)}

PROJECT: Keys = {
    "include": Key(_KIND, "all that may be there", "replaces the group's"),
    "include-provider-config": Key(flag, "false", f"adds {', '.join(NODEPOOL_KINDS)}"),
    "exclude": Key(_KIND, "none"),
    "shadow": Key(_TEXTS, "none", "jobs of these projects win silently"),
    "exclude-unprotected-branches": Key(flag, "as the tenant", _PROTECTED),
    "exclude-locked-branches": Key(flag, "as the tenant", _LOCKED),
    "include-branches": Key(many(regex), "all", "whole names; beats exclude-branches"),
    "exclude-branches": Key(many(regex), "none", "whole names"),
    "always-dynamic-branches": Key(many(regex), "none", "whole names"),
    "implied-branch-matchers": Key(flag, "see below"),
    "extra-config-paths": Key(_TEXTS, "none", "a directory ends with /"),
    "load-branch": Key(text, "master", "config-projects"),
    "allow-base-jobs": Key(flag, "true", "config-projects"),
    "configure-projects": Key(many(regex), "none", "untrusted projects; whole names"),
    "allow-reporter-jobs": Key(flag, "config-projects may, others not"),
}
GROUP: Keys = {"projects": Key(_ENTRIES, required=True), **PROJECT}

SEMAPHORE: Keys = {"name": Key(text, required=True), "max": Key(count(0), "1")}
RULE: Keys = {"name": Key(text, required=True), "conditions": Key(many(mapping), required=True)}
_IDLE_FLAGS = {
    "modify-nodeset-request": "requests for machines are nobody's to change",
}
_REQUEST = Key(either(flag, inner({"conditions": Key(many(mapping))}, "permission")), "false")
PERMISSIONS: Keys = {
    "read": Key(flag, "false"),
    "promote": Key(flag, "false"),
    "set-tenant-state": Key(flag, "false"),
    "autohold": Key(flag, "false"),
    "modify-node": Key(flag, "false", "machines that are made"),
    "build-image": Key(flag, "false", "ask for a build of an image"),
    "upload-image": Key(flag, "false", "have an upload that failed tried again"),
    "delete-image-build-artifact": Key(flag, "false"),
    "delete-image-upload": Key(flag, "false"),
    "validate-image-upload": Key(flag, "false", "have an upload validated again"),
    **{name: Key(flag, "false", idle=why) for name, why in _IDLE_FLAGS.items()},
    "dequeue": _REQUEST,
    "enqueue": _REQUEST,
    "enqueue-unapproved": _REQUEST,
    "approve": _REQUEST,
    "comment": _REQUEST,
}
ROLE: Keys = {"name": Key(text, required=True), "permissions": Key(inner(PERMISSIONS, "role's permissions"), "{}")}
API_ROOT: Keys = {
    "authentication-realm": Key(text),
    "access-rules": Key(_TEXTS, "none"),
    "anonymous-read-access": Key(flag, "true"),
    "role-mappings": Key(mapping, "none"),
}
