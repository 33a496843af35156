"""Find what changes need, on any connection.

Footers are read here for every forge, and the changes that they name are looked up if no pipeline watches them. The
connections' caches thus are an index of dependencies (`ChangeStates.dependants`), and no forge is searched.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import count

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.forges.footers import footers, ids, named
from headgate.gate.change import ChangeState, EventKind, TriggerEvent, numbered
from headgate.ports.forge import Forge, ReporterAway, ReportPutOff
from headgate.services.context import Context
from headgate.services.scheduler.changestates import ChangeStates

log = logging.getLogger("headgate.connection")

_COUNT = count(1)
LOOKED_UP_MAX = 50
"""Limit of changes looked up at once."""


class Needed:
    """Complete the changes of one connection with what they need."""

    def __init__(
        self, context: Context, connection: str, projects: Collection[str], connections: tuple[str, ...]
    ) -> None:
        """Make a completer. `projects` has the canonical names of all tenants' projects, `connections` all connections
        with changes."""
        self._context, self._connection, self._projects = context, connection, frozenset(projects)
        self._cased = {one.casefold(): one for one in self._projects}
        self._all = ChangeStates(context.map, context.mirror, connections)
        self._owners: dict[str, Forge] = {}
        """Key of a change that a footer names -> its forge."""
        self._ids: tuple[int, Mapping[str, list[str]]] = (-1, {})
        """Change-Id -> keys of changes, with the move of the caches as of which it is valid."""
        self._turns: dict[str, int] = {}
        """Key -> growing number of its last look-up, so that a change with many footers does not delay others."""

    @property
    def _forges(self) -> Mapping[str, Forge]:
        return self._context.forges

    def _key(self, url: str) -> str:
        """Return the key of the change at this address, from the first connection, in the order of the settings,
        that recognises it."""
        for forge in self._forges.values():
            if key := forge.named(url):
                key = self._known(key) if forge.can.any_case else key
                self._owners[key] = forge
                return key
        return ""

    def _known(self, key: str) -> str:
        """Return the key with the tenants' spelling of its project, which people may write in another case."""
        project, _, number = key.rpartition("#")
        found = project if project in self._projects else self._cased.get(project.casefold(), project)
        return numbered(found, number)

    def _with_id(self, id: str) -> Collection[str]:
        """Return the keys of the changes of this connection that have this Change-Id, on whatever branch, and are open
        or have landed."""
        moves = self._all.counted()
        if self._ids[0] != moves:
            found: dict[str, list[str]] = {}
            for key, one in self._all.now().items():
                if one.change.connection == self._connection and (one.open or one.landed):
                    for own in ids(one.change.message):
                        found.setdefault(own, []).append(key)
            self._ids = (moves, found)
        return sorted(self._ids[1].get(id, ()))

    def completed(self, change_state: ChangeState) -> ChangeState:
        """Return the change with the changes that its footers name. Plain git has read its own footers: only URLs are
        left there."""
        change = change_state.change
        if not change.is_change:
            return change_state
        if self._connection not in self._forges:
            # Without a forge, an address can only name a change of another connection.
            if not any("://" in text for text in change.unresolved):
                return change_state
            found = named([text for text in change.unresolved if "://" in text], self._key, ())
            left = tuple(text for text in change.unresolved if "://" not in text or text in found.unknown)
            now = replace(change, needs=_together(change.needs, found.needs), unresolved=left)
        else:
            found = named([*footers(change.message)], self._key, self._projects, self._with_id)
            # A change that names itself would wait for itself.
            needs = tuple(key for key in found.needs if key != change.key)
            now = replace(change, needs=_together(change.needs, needs), ignored=found.unknown)
        return change_state if now == change else replace(change_state, change=now)

    async def looked_up(self, change_states: Iterable[ChangeState]) -> list[ChangeState]:
        """Return new states of changes that the given ones need and that no pipeline watches. A forge that is away is
        asked again later."""
        named = (key for one in change_states if one.open for key in one.change.needs if key in self._owners)
        keys, found = dict.fromkeys(named), list[ChangeState]()
        known = self._all.now() if keys else {}
        wanted = [key for key in keys if self._is_due(known.get(key))]
        away = set[str]()
        for key in sorted(wanted, key=lambda one: self._turns.get(one, 0))[:LOOKED_UP_MAX]:
            forge = self._owners[key]
            if forge.name in away:
                continue
            # It is counted before the call, so a change whose look-up always fails goes to the back of the line, too.
            self._turns[key] = next(_COUNT)
            try:
                change_state = await forge.look_up(key)
            except (ReporterAway, ReportPutOff) as error:
                log.info("%s: %s, which changes of it need, is looked up later: %s", self._connection, key, error)
                if isinstance(error, ReporterAway):
                    # Every further call would wait for the same forge that does not answer.
                    away.add(forge.name)
                continue
            if change_state is not None and (change_state := replace(change_state, looked_up=True)) != known.get(key):
                found.append(change_state)
        return found

    def _is_due(self, known: ChangeState | None) -> bool:
        """Return whether the change's state can only be learned from its forge."""
        return known is None or (known.open and known.change.project not in self._projects)

    def retold(
        self, found: Iterable[ChangeState], own: Mapping[str, ChangeState], now: Mapping[str, ChangeState]
    ) -> list[TriggerEvent]:
        """Return the events with which changes come in again that were told of when what they need was not known.
        `own`: as they were told of; `now`: those of them that stand otherwise by now."""
        known, fresh = self._all.now(), {one.change.key for one in found}
        unknown = {key for key in fresh if key not in known}
        now_ms = self._context.now_ms()
        return [
            TriggerEvent(EventKind.PROPOSED, one.change, derived("needed", one.change.key, *sorted(unknown)), now_ms)
            for one in (now.get(key, was) for key, was in own.items() if not unknown.isdisjoint(was.change.needs))
            if one.open
        ]


def _together(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *more)))
