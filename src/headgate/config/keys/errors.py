"""List the names of configuration errors and warnings, and the effect of each."""

from __future__ import annotations

from typing import NamedTuple

from headgate.config.files.source import MEANING, NEVER, NO_EFFECT, SCHEMA, UNKNOWN_WORD


class Class(NamedTuple):
    when: str
    costs: str
    severity: str = "error"


_STANZA = "the stanza"
_ITEM = "what it is in stays; an item that would run it reports the error"
ERRORS: dict[str, Class] = {
    SCHEMA: Class(
        "no YAML, an unknown key, a value of the wrong form", "its file if that is not a list, else the stanza"
    ),
    MEANING: Class("a clash of definitions, a name that refers to nothing, whatever has no other name", "see below"),
    "Base Job Not Permitted": Class("`parent: null` outside of a config-project that may", _STANZA),
    "Duplicate Node": Class("two nodes of a nodeset have one name", _STANZA),
    "Duplicate Nodeset Group": Class("two groups of a nodeset have one name", _STANZA),
    "Node From Group Not Found": Class("a group names a node that is not in its nodeset", _STANZA),
    "Nodeset Not Found": Class("a job or an alternative names an undefined nodeset", _ITEM),
    "Label Forbidden": Class("the tenant file does not allow the label", _STANZA),
    "Label Not Found": Class("with `use-nodepool: false`, an undefined label", "nothing but the error"),
    "Max Timeout Exceeded": Class("a timeout above max-job-timeout", _STANZA),
    "Pre-Timeout Exceeds Timeout": Class("pre-timeout above timeout in one stanza", _STANZA),
    "Max OIDC TTL Exceeded": Class("ttl of a secret above max-oidc-ttl", _STANZA),
    "OIDC issuer not allowed": Class("iss of a secret is not in allowed-oidc-issuers", _STANZA),
    "Pipeline Forbidden": Class("a pipeline outside of config-projects; told once a file", _STANZA),
    "Project Forbidden": Class("a project stanza for somebody else without leave to", _STANZA),
    "Project Not Found": Class("a project that is not in the tenant, or a short name two connections have", _STANZA),
    "Reporter Job Not Permitted": Class("a job of type reporter attached by a project that may not", _ITEM),
    "Template Not Found": Class("a project names an undefined template", "no job of the project runs"),
    "Unknown Connection": Class("a connection the tenant may not use", "the pipeline; in the tenant file, the file"),
    "AuthZ Rule Not Found": Class("the tenant file names a rule it does not define", "the tenant"),
    "Role Not Found": Class("the tenant file names a role it does not define", "the tenant"),
    "Global Semaphore Not Found": Class("the tenant file names a semaphore it does not define", "the tenant"),
    "Multiple Project Configurations": Class("a branch has several of the standard roots", "the later ones", "warning"),
    "Regex Deprecation": Class("a pattern only Python's dialect knows", "nothing", "warning"),
    "Cleanup Run Deprecation": Class("cleanup-run instead of post-run with `cleanup: true`", "nothing", "warning"),
    NO_EFFECT: Class(
        "something that is accepted and has no effect here; reports of changes do not mention it", "nothing", "warning"
    ),
    UNKNOWN_WORD: Class("a word that the connection's driver does not know", "nothing", "warning"),
    NEVER: Class("a trigger of plain git names a ref that causes no events", "nothing", "warning"),
    "Github Trigger Configuration Warning": Class(
        "a trigger of GitHub has an unknown word, or the wrong form", "nothing, or that trigger", "warning"
    ),
    "Gerrit Deprecation": Class("a key of a trigger that has a successor", "nothing", "warning"),
    "GitHub Deprecation": Class("a key of a trigger that has a successor", "nothing", "warning"),
}
_NOTHING = "nothing: `headgate check` alone tells of it"
CHECKED: dict[str, Class] = {
    "Pipeline Not Found": Class("a project has a section for a pipeline that no tenant has", _NOTHING),
    "Parents In A Circle": Class("a job inherits from itself through others", _NOTHING),
    "Queue Not Found": Class("a project names an undeclared queue: one is used for all branches", _NOTHING, "warning"),
    "Semaphore Not Found": Class(
        "a job names an undeclared semaphore: one build at a time holds it", _NOTHING, "warning"
    ),
}
"""Problems that only a check reports: no change is rejected for them."""
