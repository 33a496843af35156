"""List which part of the program uses each key of the configuration.

A test compares this table with the declarations and the code. The table maps a stanza and a part of the program to the
keys that the part uses, each as `key`, or as `key=name` if the code has a name for it other than the key with
underscores. A key that is not listed is declared as having no effect. Keys of triggers and requirements of forges are
not listed, because each is declared next to its predicate (`config/forges`).
"""

from __future__ import annotations

from collections.abc import Mapping

_MESSAGES = "start-message enqueue-message no-jobs-message merge-conflict-message dequeue-message footer-message"
_REPORTERS = "success failure merge-conflict config-error start enqueue no-jobs disabled dequeue"
CONSUMERS: Mapping[str, Mapping[str, str]] = {
    "job": {
        "config/assembly": "name parent roles secrets nodeset timeout pre-timeout post-timeout dependencies",
        "config/freeze": (
            "parent final abstract intermediate protected files irrelevant-files match-on-config-updates branches "
            "attribute-control roles secrets allowed-projects post-review override-checkout override-branch nodeset "
            "required-projects include-vars type semaphore=semaphore_names semaphores=semaphore_names"
        ),
        "web": "description variant-description=body",
        "gate": (
            "type voting hold-following-changes success-message failure-message tags provides requires dependencies "
            "attempts=attempts_max semaphore=semaphores semaphores deduplicate reuse image-build-name"
        ),
        "adapters/process": (
            "run pre-run post-run cleanup-run=ignore_result roles secrets secret-exposure pre-timeout=pre_timeout_s "
            "timeout=timeout_s post-timeout=post_timeout_s attempts=attempts_max required-projects vars extra-vars "
            "host-vars group-vars include-vars override-checkout workspace-scheme workspace-checkout nodeset "
            "failure-output include-projects exclude-projects ansible-version ansible-split-streams image reuse"
        ),
        "services/nodes": "nodeset",
    },
    "job, a playbook": {"adapters/process": "semaphores cleanup"},
    "job, a semaphore": {"gate": "resources-first=semaphores_first", "services": "resources-first=semaphores_last"},
    "job, an image": {"config/freeze": "build"},
    "job, a filter of projects": {"adapters/process": "type name"},
    "job, a role of galaxy": {},
    "job, a role": {"config/freeze": "zuul name", "adapters/process": "name"},
    "job, a required project": {"config/freeze": "override-branch", "adapters/process": "override-checkout"},
    "job, a file of variables": {"adapters/process": "project zuul-project use-ref required"},
    "job, a secret": {"config/freeze": "secret pass-to-parent"},
    "job, a dependency": {"gate": "soft"},
    "pipeline": {
        "gate": (
            f"name manager=dependent trigger=triggers require reject {_REPORTERS} success-message failure-message "
            f"{_MESSAGES} precedence supercedes dequeue-on-new-patchset ignore-dependencies "
            "allow-other-connections disable-after-consecutive-failures=disable_after rerun-only-failed window "
            "window-floor=floor window-ceiling=ceiling window-increase-type=increase_type "
            "window-increase-factor=increase_factor window-decrease-type=decrease_type "
            "window-decrease-factor=decrease_factor"
        ),
        "config/freeze": "post-review allow-parameters reuse",
        "web": "description",
    },
    "project": {
        "config": "name branches templates merge-mode queue",
        "config/freeze": "vars",
        "web": "description=body",
    },
    "project-template": {"config": "name queue", "config/freeze": "vars", "web": "description=body"},
    "project, for each pipeline": {"config/freeze": "jobs parameters fail-fast", "gate": "fail-fast"},
    "project, a parameter": {
        "config/freeze": "name type values default required",
        "web": "description=parameter",
    },
    "queue": {"config": "name type per-branch", "gate": "allow-circular-dependencies dependencies-by-topic"},
    "semaphore": {"config": "name max"},
    "nodeset": {"config/freeze": "name nodes groups alternatives"},
    "nodeset, a node": {"config/freeze": "name label"},
    "nodeset, a group": {"config/freeze": "name nodes"},
    "secret": {"config": "name data oidc"},
    "secret, oidc": {"config/assembly": "ttl iss"},
    "pragma": {"config/freeze": "implied-branch-matchers implied-branches"},
    "git reporter": {"config/kinds": "note", "gate": "land=lands"},
    "gerrit reporter": {"adapters/forges/gerrit": "comment notify", "gate": "submit=lands"},
    "queue trigger": {"config": "project", "services/scheduler": "queue project branch"},
    "github reporter": {
        "adapters/forges/github": "status comment label unlabel review review-body check",
        "adapters/forges": "status-url",
        "gate": "merge=lands",
    },
    "gitlab reporter": {"adapters/forges/gitlab": "status comment approval label unlabel", "gate": "merge=lands"},
    "gitea reporter": {
        "adapters/forges/gitea": "status comment label unlabel review review-body",
        "adapters/forges": "status-url",
        "gate": "merge=lands",
    },
    "pagure reporter": {"adapters/forges/pagure": "status status-url comment", "gate": "merge=lands"},
    "queue reporter": {"services/scheduler": "queue ttl"},
    "inventory trigger": {"config": "project", "services/scheduler": "event=events type filter project branch"},
    "inventory reporter": {"services/scheduler": "set unset tag untag"},
    "smtp reporter": {"adapters/reporters": "to from subject"},
    "chat reporter": {"adapters/reporters": "title"},
    "mqtt reporter": {"adapters/reporters": "topic qos"},
    "elasticsearch reporter": {"adapters/reporters": "index"},
    "zuul trigger": {"gate": "event=events pipeline"},
    "zuul reporter": {"gate": "image-built image-validated"},
    "timer trigger": {"services/scheduler": "time"},
    "tenant": {
        "config": (
            "name source=projects max-nodes-per-job max-job-timeout=max_job_timeout_s allowed-triggers "
            "allowed-reporters allowed-labels disallowed-labels use-nodepool semaphores default-parent "
            "max-oidc-ttl=max_oidc_ttl_s allowed-oidc-issuers exclude-unprotected-branches exclude-locked-branches"
        ),
        "config/freeze": "default-ansible-version",
        "services": "max-dependencies max-changes-per-pipeline max-nodes-per-project=most_nodes resource-limits labels",
        "web": "admin-rules access-rules role-mappings anonymous-read-access authentication-realm",
    },
    "a label of a tenant": {"services/nodes": "name=labels search project partition triggering"},
    "a project of a tenant": {
        "config": (
            "include exclude include-provider-config shadow include-branches exclude-branches "
            "always-dynamic-branches implied-branch-matchers extra-config-paths load-branch allow-base-jobs "
            "configure-projects allow-reporter-jobs exclude-unprotected-branches exclude-locked-branches"
        ),
    },
    "global-semaphore": {"config": "name max"},
    "authorization-rule": {"config/operator": "name conditions"},
    "role": {"web": "name=roles permissions"},
    "role, permissions": {
        "web": (
            "read promote set-tenant-state autohold modify-node enqueue dequeue enqueue-unapproved approve comment "
            "build-image upload-image delete-image-build-artifact delete-image-upload validate-image-upload "
            "modify-nodeset-request"
        ),
    },
    "api-root": {"web": "authentication-realm access-rules anonymous-read-access role-mappings"},
}
