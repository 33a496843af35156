"""Define the predicates that drivers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from headgate.config.files.checks import as_list
from headgate.config.forges.facts import Details, ForgeAccount, ProgramStatus, Vote
from headgate.config.forges.keyterms import UNDECIDED, Holds, TermSubject
from headgate.config.patterns import Rule, fullmatches, may_match, searches

PERMISSIONS = ("none", "read", "write", "admin")
"""Permissions from lowest to highest."""
AGES_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def age_ms(age: str) -> int:
    """Convert an age such as `2h` into milliseconds."""
    return int(age[:-1]) * AGES_S[age[-1]] * 1_000


def always(_value: object, _seen: TermSubject) -> bool:
    """Hold always: the key is not a condition."""
    return True


# --- patterns: one, or a list of which any may match


def found_in(rules: object, texts: Iterable[str]) -> bool:
    """Return whether one of the patterns occurs in one of the texts. Raise Undecided and BadPattern if that depends on
    an undecided pattern."""
    return _any(searches, rules, texts)


def fullmatch(rules: object, texts: Iterable[str]) -> bool:
    """Return whether one of the patterns matches all of one of the texts. Raise Undecided and BadPattern if that
    depends on an undecided pattern."""
    return _any(fullmatches, rules, texts)


def _any(matcher: Callable[[Rule, str], bool], rules: object, texts: Iterable[str]) -> bool:
    return any_decided(partial(matcher, rule, text) for text in texts for rule in as_list(rules))


def any_decided(tests: Iterable[Callable[[], bool]]) -> bool:
    """Return whether one of the tests holds. Raise Undecided and BadPattern if none does and one is undecided."""
    undecided: Exception | None = None
    for test in tests:
        try:
            if test():
                return True
        except UNDECIDED as error:
            undecided = error
    if undecided is not None:
        raise undecided
    return False


def on_branch(rules: object, seen: TermSubject) -> bool:
    return not as_list(rules) or (bool(seen.change.branch) and may_match(as_list(rules), seen.change.branch))


def on_ref(rules: object, seen: TermSubject) -> bool:
    return not as_list(rules) or (bool(seen.change.ref) and may_match(as_list(rules), seen.change.ref))


def on_updated_ref(rules: object, seen: TermSubject) -> bool:
    """Return the same as `on_ref`, but only for refs that are not changes."""
    return not as_list(rules) or (not seen.change.is_change and on_ref(rules, seen))


def commented(rules: object, seen: TermSubject) -> bool:
    return found_in(rules, seen.what.comments)


# --- words


def one_of(pick: Callable[[TermSubject], Iterable[str]]) -> Holds:
    """Hold if one of the words is among those picked."""
    return lambda words, seen: not {str(word) for word in as_list(words)}.isdisjoint(pick(seen))


def happened(events: object, seen: TermSubject) -> bool:
    """Return whether `events` names the event of the subject, whether or not that deletes a ref."""
    return seen.what.event in as_list(events)


def happened_to_existing(events: object, seen: TermSubject) -> bool:
    return happened(events, seen) and not seen.change.deletes


def unless_deleted(ignore: object, seen: TermSubject) -> bool:
    return not (ignore and seen.change.deletes)


def action(seen: TermSubject) -> tuple[str, ...]:
    return (seen.what.action,)


def added(seen: TermSubject) -> tuple[str, ...]:
    return seen.what.added


def removed(seen: TermSubject) -> tuple[str, ...]:
    return seen.what.removed


def labels(seen: TermSubject) -> tuple[str, ...]:
    return seen.details.labels or ()


# --- facts: true, false or unknown


def fact(pick: Callable[[TermSubject], bool | None]) -> Holds:
    """Hold if the fact has the required value. An unknown fact equals neither value."""
    return lambda wanted, seen: pick(seen) is wanted


def is_open(seen: TermSubject) -> bool | None:
    return seen.known.open if seen.change.is_change else None


def is_merged(seen: TermSubject) -> bool | None:
    return seen.known.landed if seen.change.is_change else None


def is_draft(seen: TermSubject) -> bool | None:
    return seen.details.draft if seen.change.is_change else None


def is_current(seen: TermSubject) -> bool | None:
    return seen.details.current if seen.change.is_change else None


# --- people


def permitted(wanted: object, who: ForgeAccount | None) -> bool:
    """Return whether the account has at least one of these permissions; False without an account, or if its permission
    is unknown."""
    if who is None or who.permission not in PERMISSIONS:
        return False
    rank = PERMISSIONS.index
    return any(rank(who.permission) >= rank(one) for one in as_list(wanted) if one in PERMISSIONS)


def of_somebody(pick: Callable[[ForgeAccount], str]) -> Holds:
    """Hold if one of the patterns occurs in the name of the account that caused the event. An event without an
    account does not match."""
    return lambda rules, seen: seen.what.who is None or found_in(rules, (pick(seen.what.who),))


def counts(vote: Vote, wanted: Mapping[str, Any], now_ms: int | None) -> bool:
    """Return whether the author and the age of a vote meet the conditions `username`, `email`, `permission`,
    `older-than` and `newer-than`. Raise Undecided and BadPattern if that depends on an undecided pattern."""
    if "permission" in wanted and not permitted(wanted["permission"], vote.who):
        return False
    if not _aged(vote, wanted, now_ms):
        return False
    # Check patterns last: an undecided pattern must not matter for a vote that does not count anyway.
    if "username" in wanted and not found_in(wanted["username"], (vote.who.name,)):
        return False
    return "email" not in wanted or found_in(wanted["email"], (vote.who.email,))


def _aged(vote: Vote, wanted: Mapping[str, Any], now_ms: int | None) -> bool:
    if now_ms is None:
        return True  # ages matter only on entry
    # A vote of unknown age meets neither condition.
    old_ms = now_ms - vote.since_ms if vote.since_ms else None
    if "older-than" in wanted and (old_ms is None or old_ms <= age_ms(wanted["older-than"])):
        return False
    return "newer-than" not in wanted or (old_ms is not None and old_ms <= age_ms(wanted["newer-than"]))


def others(seen: TermSubject) -> tuple[Vote, ...]:
    """Return the votes to consider: all of them on entry, and those of other accounts afterwards."""
    votes = seen.details.votes or ()
    return votes if seen.now_ms is not None else tuple(one for one in votes if one.who.name not in seen.details.us)


def asks_of_us(wanted: Mapping[str, Any], seen: TermSubject) -> bool:
    """Return whether a requirement on a change that has entered concerns something that Headgate itself reports."""
    if seen.now_ms is not None:
        return False
    # Headgate's own vote changes while it tests the item; requiring the old one again would dequeue the item.
    named = "username" in wanted and found_in(wanted["username"], seen.details.us)
    return named or not seen.ours.isdisjoint(wanted)


def spelled_statuses(details: Details, seen: TermSubject) -> list[str]:
    """Return the statuses and checks to consider, as pipelines name them: all of them on entry, and those of others
    afterwards."""
    return [one.spelled for one in details.statuses or () if seen.now_ms is not None or not _is_ours(one, seen)]


def _is_ours(one: ProgramStatus, seen: TermSubject) -> bool:
    return one.who in seen.details.us or one.name in seen.ours


STATES = ("pending", "success", "failure", "error", "neutral", "cancelled", "skipped", "in_progress", "queued")


def has_status(rules: object, seen: TermSubject) -> bool:
    """Hold if one of the patterns matches all of a status. For an item that has entered, Headgate's own status counts
    with any state, so that a gate that sets its status to pending does not dequeue its own items."""
    if fullmatch(rules, spelled_statuses(seen.details, seen)):
        return True
    if seen.now_ms is not None:
        return False
    names = {(one.who, one.name) for one in seen.details.statuses or () if _is_ours(one, seen)}
    return fullmatch(rules, (f"{who}:{name}:{state}" for who, name in names for state in STATES))


def has_foreign_status(rules: object, seen: TermSubject) -> bool:
    """Return whether one of the patterns matches all of a status, for `reject`."""
    return fullmatch(rules, spelled_statuses(seen.details, seen))


def labelled(words: object, seen: TermSubject) -> bool:
    """Return whether the change has all of these labels. Labels that the pipeline sets itself are not required of
    items that have entered."""
    wanted = {str(word) for word in as_list(words)} - (seen.ours if seen.now_ms is None else frozenset())
    return wanted <= set(labels(seen))


def has_label(words: object, seen: TermSubject) -> bool:
    """Return whether the change has any of these labels, for `reject`."""
    unwanted = {str(word) for word in as_list(words)} - (seen.ours if seen.now_ms is None else frozenset())
    return not unwanted.isdisjoint(labels(seen))
