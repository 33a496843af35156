"""Read people's statements on changes, each in a ref with their name: approvals, vetoes and authorship."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.adapters.git.poll.misfits import Misfits
from headgate.adapters.git.poll.names import APPROVALS, FOR, PROPOSERS, VETOES, statement_of
from headgate.config.forges.facts import Word
from headgate.gate.change import ChangeState

PEOPLE_MAX = 100
"""Most people with a statement on one change; those of further people are ignored."""


class RefStatements:
    """Read the statements on all changes of a repository from its current refs."""

    def __init__(self, refs: Mapping[str, str], now_ms: int) -> None:
        self._now_ms = now_ms
        self._words: dict[str, dict[str, list[Word]]] = {kind: {} for kind in (APPROVALS, VETOES, PROPOSERS)}
        """Kind of statement -> name of the proposal -> its statements."""
        for kind, found in self._words.items():
            for ref, commit in refs.items():
                if (statement := statement_of(ref, kind)) is not None:
                    found.setdefault(statement[1], []).append(Word(statement[0], commit, ref, now_ms))

    def of(
        self, name: str, commit: str, known: ChangeState | None
    ) -> tuple[tuple[Word, ...], tuple[Word, ...], tuple[str, ...]]:
        """Return approvals, vetoes, and the author of this commit. Known statements keep the time at which they were
        first seen."""
        approvals = self._since(APPROVALS, name, known.approvals if known is not None else ())
        vetoes = self._since(VETOES, name, known.vetoes if known is not None else ())
        proposers = sorted({word.who for word in self._words[PROPOSERS].get(name, ()) if word.commit == commit})
        return approvals, vetoes, tuple(proposers[:PEOPLE_MAX])

    def _since(self, kind: str, name: str, known: Collection[Word]) -> tuple[Word, ...]:
        first = {(word.ref, word.commit): word for word in known}
        words = sorted(self._words[kind].get(name, ()), key=lambda word: word.ref)[:PEOPLE_MAX]
        # Only an unmoved statement keeps its time: a vote on a new patchset is a new vote.
        return tuple(first.get((word.ref, word.commit), word) for word in words)

    def lost(self, proposed: Collection[str], misfits: Misfits) -> None:
        """Name the statements that belong to no proposal."""
        for kind in (APPROVALS, VETOES):
            for name, words in self._words[kind].items():
                for word in words if name not in proposed else ():
                    misfits.add(word.ref, f"there is no such change; propose it (push to {FOR}{name}), or remove this")


def gained(now: ChangeState, before: ChangeState | None) -> bool:
    """Return whether somebody newly approves this patchset, or has withdrawn a veto on an approved one."""
    relieved = before is not None and bool(before.vetoes) and not now.vetoes
    if now.open and relieved and (now.approvals or now.is_approved):
        return True
    had = {word.who for word in before.approvals if word.commit == now.change.commit} if before is not None else set()
    return now.open and any(w.commit == now.change.commit and w.who not in had for w in now.approvals)
