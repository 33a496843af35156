"""Define what a key of a driver is: its form, and whether what it says holds of a change or of what happened to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headgate.config.files.check import Keys, StanzaKey
from headgate.config.forges.facts import Details, ForgeEvent, PipelineCheck, Word


class ProposedChange(Protocol):
    """Declare what is read of a change, or of a ref that was updated (`gate.change.Change`)."""

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
    """Declare what is read of a connection's knowledge of a change (`gate.change.ChangeState`)."""

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
    """Hold what a predicate may look at."""

    known: KnownFacts
    tenant: str = ""
    now_ms: int | None = None
    """The moment at which it is to come in; None: it is there already, and what only counts at that moment is not asked
    again, nor what Headgate itself says of it."""
    kind: str = ""
    """Kind of the event, a `gate.change.EventKind`."""
    happening: ForgeEvent | None = None
    """The event itself, if a forge sent it."""
    ours: frozenset[str] = frozenset()
    """Labels and contexts that the pipeline's reporters set."""

    @property
    def change(self) -> ProposedChange:
        return self.known.change

    @property
    def details(self) -> Details:
        """Return what the forge says; a change of which it says nothing has nothing."""
        return self.known.details or _NOTHING

    @property
    def what(self) -> ForgeEvent:
        return self.happening or _NOTHING_HAPPENED


_NOTHING, _NOTHING_HAPPENED = Details(), ForgeEvent("")
Holds = Callable[[Any, TermSubject], bool]
"""What is said in the configuration (JSON), and what is asked about."""


class TriggerTerm(NamedTuple):
    """Represent one key of a trigger or a requirement."""

    form: StanzaKey
    holds: Holds
    """In a trigger, and in `require`."""
    rejects: Callable[[Any, TermSubject], bool | str] | None = None
    """In `reject`, where that is not a mere opposite, perhaps with what is to be told; None: as `holds`."""
    lacks: Callable[[Any, TermSubject], str] | None = None
    """What is missing in `require`, for people, where there is more to say than that it does not hold; empty: it
    holds."""


Terms = Mapping[str, TriggerTerm]
_Hows = Sequence[Mapping[str, Any]]


def forms(terms: Terms) -> Keys:
    """Return what the configuration may say."""
    return {name: term.form for name, term in terms.items()}


OF_CHANGE = frozenset({"require", "reject", "require-approval", "reject-approval", "require-status", "reject-status"})
"""Keys of a trigger that ask something of the change."""


class Dialect(NamedTuple):
    """Define what the driver of a forge lets pipelines say, and what it means."""

    trigger: Terms
    require: Terms
    reporter: Keys
    trigger_defaults: Mapping[str, Any] = {}
    """Key of a trigger -> value that is required where the key is missing."""
    instead: Mapping[str, str] = {}
    """Key of a trigger -> key that replaces it where both are set."""
    events_of: Mapping[str, tuple[ForgeEvent, ...]] = {}
    """Kind of event -> what it is in the words of triggers, where no more is known of it."""
    sets: Callable[[Mapping[str, Any]], frozenset[str]] = lambda _: frozenset()
    """Function that returns the labels and contexts that one reporter sets."""
    nobody: frozenset[str] = frozenset()
    """Events and actions whose author is unknown; a trigger that requires a permission never matches them."""
    closes: Callable[[_Hows, _Hows], _Hows] = lambda _started, _ended: ()
    """Reporters of the beginning, and of the end of an item that is taken out -> what has to be said besides, so that
    nothing stays open at the forge."""
    of_change: frozenset[str] = OF_CHANGE
    """Keys of a trigger that ask something of the change."""
    lands: tuple[str, ...] = ("merge",)
    """Keys of a success reporter that land the change when they are true."""
    free: bool = False
    """Whether reporters may have any other key, too."""
    forgiven: str = ""
    """Name of the warnings that errors of a trigger become, except for unknown keys; empty if they stay errors."""
    named: tuple[str, ...] = ()
    """Keys of a requirement that name people; they work only where the server authenticates people."""
    refs_too: bool = False
    """Whether refs are admitted regardless of requirements for changes; on other forges a ref never meets those."""


def triggered(dialect: Dialect, trigger: Mapping[str, Any], seen: TermSubject) -> bool:
    """Return whether everything that a trigger says holds for what happened. If only the kind of the event is known,
    only the kind is compared."""
    required = {**dialect.trigger_defaults, **trigger}
    terms = [
        (dialect.trigger[name], value)
        for name, value in required.items()
        if name in dialect.trigger and dialect.instead.get(name) not in required
    ]
    readings = [seen]
    if seen.happening is None and dialect.events_of:
        readings = [seen._replace(happening=one) for one in dialect.events_of.get(seen.kind, ())]
    return any(all(term.holds(value, reading) for term, value in terms) for reading in readings)


def unmet(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> str:
    """Return what is missing first of what is required, for people; empty: nothing is."""
    return next(missing(terms, requirement, seen), "")


def missing(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> Iterator[str]:
    """Yield what is missing of what is required, for people."""
    for name, value in requirement.items():
        term = terms.get(name)
        if term is None:
            continue
        why = term.lacks(value, seen) if term.lacks is not None else ""
        if why or (term.lacks is None and not term.holds(value, seen)):
            yield why or f"{seen.change.key} {_is_not(name, _part(value, term.holds, seen, holds=False))}"


def refused(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> str:
    """Return what holds first of that which keeps a change out, for people; empty: nothing does."""
    return next(hindering(terms, requirement, seen), "")


def hindering(terms: Terms, requirement: Mapping[str, Any], seen: TermSubject) -> Iterator[str]:
    """Yield what holds of that which keeps a change out, for people."""
    for name, value in requirement.items():
        term = terms.get(name)
        if term is None:
            continue
        rejects = term.rejects or term.holds
        if found := rejects(value, seen):
            part = _part(value, rejects, seen, holds=True)
            yield found if isinstance(found, str) else f"{seen.change.key} {_is(name, part)}"


def _part(value: object, term: Callable[[Any, TermSubject], bool | str], seen: TermSubject, *, holds: bool) -> object:
    """Return those of a list that it is about: of what is wanted together, only what is missing."""
    if not isinstance(value, list):
        return value
    return [one for one in value if bool(term([one], seen)) is holds] or value


def _is_not(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"is {'not ' if value else ''}{name}"
    return f"lacks what is required of it: {name}: {spelled(value)}"


def _is(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"is {'' if value else 'not '}{name}"
    return f"has what keeps it out: {name}: {spelled(value)}"


def spelled(value: object) -> str:
    """Return what stands in a configuration, in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {spelled(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spelled, value))}]" if len(value) != 1 else spelled(value[0])
    return str(value).lower() if isinstance(value, bool) else str(value)
