"""Determine Gerrit's requirements for the submit of a change, and the votes that these need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headgate.adapters.forges.gerrit.entities import ChangeInfo, Requirement
from headgate.config.forges.facts import Rule

TEXT_MAX_CHARS = 300
_WORD = re.compile(r'-?\(|\)|-?(?:[^\s()"]|"[^"]*")+')
_LABEL = re.compile(r"label:\"?([A-Za-z0-9-]+)")


def rules(info: ChangeInfo) -> tuple[Rule, ...]:
    """Return the unmet requirements, and those that may become unmet; for an old server without requirements, the
    submit decides."""
    found = [_rule(one, info) for one in info.requirements]
    if info.work_in_progress:
        found.append(Rule("is work in progress: press *Start review*", met=False))
    return tuple(found)


def _rule(one: Requirement, info: ChangeInfo) -> Rule:
    condition = one.description or one.submittability.expression
    text = f"lacks {one.name}{f': {condition[:TEXT_MAX_CHARS]}' if condition else ''}"
    return (
        Rule(text, met=True) if one.is_met else Rule(text, met=False, missing=missing(one, set(info.permitted_labels)))
    )


def missing(one: Requirement, may: set[str]) -> tuple[str, ...]:
    """Return the labels that a requirement waits for and, for its other conditions, the text of its expression. `may`:
    the labels that our account may vote on. If one of several votes suffices, ours is the one that is missing."""
    wrong = dict.fromkeys(_wrong(one))
    labels = {atom: found[1] for atom in wrong if (found := _LABEL.match(atom)) is not None}
    ours = [label for label in labels.values() if label in may]
    if " or " in f" {one.submittability.expression.lower()} " and ours:
        return tuple(dict.fromkeys(ours))
    return tuple(dict.fromkeys(labels.get(atom, atom) for atom in wrong)) or (one.name,)


def _wrong(one: Requirement) -> Iterator[str]:
    """Yield the parts of an expression that make it false: those that fail, and negated ones that hold."""
    failing, passing = set(one.submittability.failing_atoms), set(one.submittability.passing_atoms)
    denied = denied_once = False
    depth: list[bool] = []
    for word in _WORD.findall(one.submittability.expression):
        if word in ("(", "-(", ")"):
            if word == ")":
                denied = depth.pop() if depth else False
            else:
                depth.append(denied)
                # Negations cancel each other: in `-(a OR -b)` a makes it false by holding and b by failing.
                denied ^= denied_once or word == "-("
            denied_once = False
        elif word.upper() in ("AND", "OR"):
            continue
        elif word.upper() == "NOT":
            denied_once = True
        else:
            atom = word.removeprefix("-")
            away = denied ^ denied_once ^ (atom != word)
            denied_once = False
            if atom in (passing if away else failing):
                yield atom
