"""Define the keys of drivers: the type of each value, and the predicate that decides whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headgate.config.files.checks import Keys, StanzaKey
from headgate.config.forges.facts import Details, ForgeEvent, PipelineCheck, Word
from headgate.config.patterns import BadPattern, Undecided


class ProposedChange(Protocol):
    """Declare the attributes that predicates read of a change or an updated ref (`gate.state.change.Change`)."""

    @property
    def key(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def ref(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def is_change(self) -> bool: ...
    @property
    def deletes(self) -> bool: ...


class KnownFacts(Protocol):
    """Declare the attributes that predicates read of a change's state (`gate.state.change.ChangeState`)."""

    @property
    def change(self) -> ProposedChange: ...
    @property
    def open(self) -> bool: ...
    @property
    def landed(self) -> bool: ...
    @property
    def is_approved(self) -> bool: ...
    @property
    def approvals(self) -> Sequence[Word]: ...
    @property
    def vetoes(self) -> Sequence[Word]: ...
    @property
    def proposers(self) -> Sequence[str]: ...
    @property
    def checks(self) -> Sequence[PipelineCheck]: ...
    @property
    def details(self) -> Details | None: ...


class TermSubject(NamedTuple):
    """Hold the facts that a predicate may examine."""

    known: KnownFacts
    tenant: str = ""
    now_ms: int | None = None
    """Time at which the change may enter, in milliseconds since the epoch, or None if it has already entered. Then
    conditions that apply only on entry, and conditions about Headgate's own reports, are not checked again."""
    kind: str = ""
    """Kind of the event, a `gate.state.change.EventKind`."""
    happening: ForgeEvent | None = None
    """The event itself, if a forge sent it."""
    ours: frozenset[str] = frozenset()
    """Labels and contexts that the pipeline's reporters set."""

    @property
    def change(self) -> ProposedChange:
        return self.known.change

    @property
    def details(self) -> Details:
        """Return the forge's details of the change; empty details if it reports nothing."""
        return self.known.details or _NOTHING

    @property
    def what(self) -> ForgeEvent:
        return self.happening or _NOTHING_HAPPENED


_NOTHING, _NOTHING_HAPPENED = Details(), ForgeEvent("")
UNDECIDED = (Undecided, BadPattern)
"""Errors of a predicate that cannot decide. The change then does not enter, whatever the condition."""
Holds = Callable[[Any, TermSubject], bool]
"""Predicate: (value in the configuration as JSON, subject) -> whether the value holds for the subject."""


class TriggerTerm(NamedTuple):
    """Represent one key of a trigger or a requirement."""

    form: StanzaKey
    holds: Holds
    """Predicate for triggers and `require`."""
    rejects: Callable[[Any, TermSubject], bool | str] | None = None
    """Predicate for `reject`, which may return a message instead of true; None if `holds` applies."""
    lacks: Callable[[Any, TermSubject], str] | None = None
    """Function that returns a message about an unmet `require`, or an empty string; None to use only `holds`."""


Terms = Mapping[str, TriggerTerm]
_Hows = Sequence[Mapping[str, Any]]


def forms(terms: Terms) -> Keys:
    """Return the keys with the checks of their values."""
    return {name: term.form for name, term in terms.items()}


OF_CHANGE = frozenset({"require", "reject", "require-approval", "reject-approval", "require-status", "reject-status"})
"""Keys of a trigger that set conditions for the change."""


class Dialect(NamedTuple):
    """Define the keys that the driver of a forge accepts in pipelines, and their meanings."""

    trigger: Terms
    require: Terms
    reporter: Keys
    trigger_defaults: Mapping[str, Any] = {}
    """Key of a trigger -> value that is required if the trigger does not set the key."""
    instead: Mapping[str, str] = {}
    """Key of a trigger -> key that replaces it if both are set."""
    events_of: Mapping[str, tuple[ForgeEvent, ...]] = {}
    """Kind of event -> events in the terms of triggers, for an event of which only the kind is known."""
    sets: Callable[[Mapping[str, Any]], frozenset[str]] = lambda _: frozenset()
    """Function that returns the labels and contexts that one reporter sets."""
    nobody: frozenset[str] = frozenset()
    """Events and actions whose author is unknown; a trigger that requires a permission never matches them."""
    closes: Callable[[_Hows, _Hows], _Hows] = lambda _started, _ended: ()
    """Function that takes the reports at the start and at the dequeuing of an item, and returns additional reports,
    which close whatever the reports at the start left open at the forge."""
    of_change: frozenset[str] = OF_CHANGE
    """Keys of a trigger that set conditions for the change."""
    lands: tuple[str, ...] = ("merge",)
    """Keys of a success reporter that land the change when they are true."""
    free: bool = False
    """Whether reporters may have any other keys, too."""
    forgiven: str = ""
    """Name of warnings that replace errors in a trigger, except for unknown keys; empty if they stay errors."""
    named: tuple[str, ...] = ()
    """Keys of a requirement that name people; they work only where the server authenticates people."""
    refs_too: bool = False
    """Whether refs are admitted regardless of requirements for changes; on other forges, a ref never meets such
    requirements."""


def triggered(dialect: Dialect, trigger: Mapping[str, Any], seen: TermSubject) -> bool:
    """Return whether every key of a trigger holds for an event. If only the kind of the event is known, compare only
    the kind."""
    required = {**dialect.trigger_defaults, **trigger}
    terms = [
        (dialect.trigger[name], value)
        for name, value in required.items()
        if name in dialect.trigger and dialect.instead.get(name) not in required
    ]
    readings = [seen]
    if seen.happening is None and dialect.events_of:
        # An event found by comparing states has only a kind, which several forge events share: any of them may match.
        readings = [seen._replace(happening=one) for one in dialect.events_of.get(seen.kind, ())]
    # An undecided pattern never starts a pipeline.
    return any(all(_decided(term.holds, value, reading, False) for term, value in terms) for reading in readings)


def unmet(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> str:
    """Return a message about the first unmet requirement, or an empty string if all are met."""
    return next(missing(terms, requirement, seen), "")


def missing(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> Iterator[str]:
    """Yield a message about each unmet requirement."""
    for name, value in requirement.items():
        term = terms.get(name)
        if term is None:
            continue
        try:
            why = term.lacks(value, seen) if term.lacks is not None else ""
            if why or (term.lacks is None and not term.holds(value, seen)):
                yield why or f"{seen.change.key} {_is_not(name, _part(value, term.holds, seen, holds=False))}"
        except UNDECIDED as error:
            yield f"{seen.change.key}: {name}: {error}"


def refused(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> str:
    """Return a message about the first condition that rejects the change, or an empty string."""
    return next(hindering(terms, requirement, seen), "")


def hindering(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> Iterator[str]:
    """Yield a message about each condition that rejects the change."""
    for name, value in requirement.items():
        term = terms.get(name)
        if term is None:
            continue
        rejects = term.rejects or term.holds
        try:
            if found := rejects(value, seen):
                part = _part(value, rejects, seen, holds=True)
                yield found if isinstance(found, str) else f"{seen.change.key} {_is(name, part)}"
        except UNDECIDED as error:
            # A change must not enter just because a pattern takes too long to match its text.
            yield f"{seen.change.key}: {name}: {error}"


def _part(value: object, term: Callable[[Any, TermSubject], bool | str], seen: TermSubject, *, holds: bool) -> object:
    """Return the elements of a list for which the predicate returns `holds`, or the value itself if there are none or
    it is not a list."""
    if not isinstance(value, list):
        return value
    return [one for one in value if bool(_decided(term, [one], seen, holds)) is holds] or value


def _decided(
    term: Callable[[Any, TermSubject], bool | str], value: object, seen: TermSubject, undecided: bool
) -> bool | str:
    """Return the result of the predicate, or `undecided` if it depends on an undecided pattern."""
    try:
        return term(value, seen)
    except UNDECIDED:
        return undecided


def _is_not(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"is {'not ' if value else ''}{name}"
    return f"does not meet the requirement {name}: {spelled(value)}"


def _is(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"is {'' if value else 'not '}{name}"
    return f"is rejected because of {name}: {spelled(value)}"


def spelled(value: object) -> str:
    """Format a value of the configuration in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {spelled(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spelled, value))}]" if len(value) != 1 else spelled(value[0])
    return str(value).lower() if isinstance(value, bool) else str(value)
