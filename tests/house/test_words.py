"""Names: private words of the past do not come back; each has a successor that the field knows."""

from __future__ import annotations

import re
from collections import Counter

from tests.house.sources import WRITTEN, facts

SUCCESSORS = {
    "standing": "change state, partition status",
    "keeping": "pipeline store",
    "wish": "desired state",
    "notice": "event",
    "posting": "outbox message",
    "letter": "message (`dead letter` stays)",
    "lane": "partition (of a queue); the inventory's are qualified",
    "hold": "ownership (`autohold`, and leases that are held, stay)",
    "desk": "what it does",
    "yard": "what it does",
    "bell": "what it does",
    "door": "server, listener, entry",
    "reach": "what it does",
    "witness": "what it does",
    "crew": "workers",
    "trouble": "problem",
    "looking": "poll",
    "telling": "explain",
    "trying": "tryjob",
    "hearing": "listener",
    "steering": "control",
}
"""Word, also in the plural -> what is said instead."""
LEFT = {
    "hold": 92,  # locks, machines of `autohold`, conditions that hold, `hold` of a delayed message (API)
    "letter": 3,  # of the alphabet
    "posting": 10,
}  # fmt: skip
"""Names that may have the word: lower these numbers. `posting`: what lists of an inverted index are called."""


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case and in the singular."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {re.sub(r"(?<=sh)es$|(?<=ch)es$|(?<!s)s$", "", word.lower()) for word in words}


def test_words_are_split_and_taken_in_the_singular() -> None:
    assert _words("_ObjectNotices") == {"object", "notice"} and _words("wishes_left") == {"wish", "left"}
    assert _words("DOORS") == {"door"} and _words("reaches") == {"reach"}


def test_private_words_do_not_come_back() -> None:
    found: Counter[str] = Counter()
    places: dict[str, set[str]] = {}
    for path in WRITTEN:
        for name in (*facts(path).names, path.parent.name if path.stem == "__init__" else path.stem):
            for word in _words(name) & SUCCESSORS.keys() - ({"letter"} if "dead" in _words(name) else set()):
                found[word] += 1
                places.setdefault(word, set()).add(f"{path}: {name}")
    excess = {word: sorted(places[word]) for word, n in found.items() if n > LEFT.get(word, 0)}
    assert not excess, {word: (SUCCESSORS[word], excess[word]) for word in excess}
    assert dict(found) == LEFT, "lower the numbers"
