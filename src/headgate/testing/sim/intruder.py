"""Somebody who may propose and nothing more: strange changes, strange jobs, floods, second thoughts."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.gate.change import Change
from headgate.testing.fuzz import PUNCTUATION
from headgate.testing.sim.corpus import CONFIGS, NAMES, RESULTS, RETURNS, TEXTS
from headgate.testing.sim.world import BRANCH, EVIL, PROJECTS, Harm, SimWorld

ACTS_MAX = 8
FLOODS = (5, 20, 40)
"""Numbers of changes that are proposed at one moment."""
PAUSE_MAX_S = 1.5


@dataclass(slots=True)
class Intruder:
    """Act as an intruder; equal chances give equal runs."""

    world: SimWorld
    chance: random.Random
    flood: int = 0
    """Number of changes that are proposed at one moment at the beginning."""
    _commits: int = 0

    async def run(self) -> None:
        for _ in range(self.flood):
            self._propose()
        for _ in range(self.chance.randrange(1, ACTS_MAX + 1)):
            match self.chance.randrange(8):
                case 0:
                    for _ in range(self.chance.choice(FLOODS)):
                        self._propose()
                case 1:
                    self._withdraw()
                case 2:
                    self._replace()
                case _:
                    self._propose()
            await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)

    def _own(self) -> list[str]:
        return sorted(key for key, change_state in self.world.open.items() if change_state.change.project == EVIL)

    def _propose(self) -> None:
        topic = self.chance.choice(NAMES) + str(self._commits)
        needs = tuple(self._needed(topic) for _ in range(self._few()))
        files = self.chance.choice([None, (), ("zuul.yaml",), ("x", "zuul.yaml"), ("\x1b[2J", "../../x", "zuul.d/")])
        change = Change(
            "sim", EVIL, BRANCH, topic, ref=f"refs/for/{BRANCH}/{topic}", message=self.chance.choice(TEXTS),
            owner=self.chance.choice(TEXTS)[:200], files=files, needs=tuple(dict.fromkeys(needs)),
            unresolved=tuple(self.chance.choice(TEXTS)[:500] for _ in range(self._few())),
        )  # fmt: skip
        self.world.propose(self._patchset(change), approved=False)

    def _needed(self, topic: str) -> str:
        """Choose an honest change, another hostile one, itself, or one that is not there."""
        honest = [key for key, change_state in self.world.open.items() if change_state.change.project != EVIL]
        among = honest if honest and self.chance.random() < 0.6 else [*self.world.open]
        none = f"{self.chance.choice([EVIL, *PROJECTS])}/{BRANCH}/{topic}"
        return self.chance.choice([*among, none])

    def _few(self) -> int:
        return self.chance.choice([0, 0, 0, 1, 3])

    def _patchset(self, change: Change) -> Change:
        commit = f"e{self._commits}"
        self._commits += 1
        chance = self.chance
        error = ValueError(f"an object that cannot be read: {chance.choice(TEXTS)[:100]}")
        self.world.harms[commit] = Harm(
            config=self._config(),
            returned=chance.choice(RETURNS) if chance.random() < 0.6 else {},
            merging=error if chance.random() < 0.05 else None,
            running=error if chance.random() < 0.1 else None,
            result=chance.choice(RESULTS),
        )
        return replace(change, commit=commit)

    def _config(self) -> str:
        """Choose a configuration of the corpus; now and then change a few letters of it."""
        text = self.chance.choice(CONFIGS)
        if not text or self.chance.random() < 0.7:
            return text
        letters = list(text[:2_000])
        for _ in range(self.chance.randrange(1, 6)):
            letters[self.chance.randrange(len(letters))] = self.chance.choice(PUNCTUATION)
        return "".join(letters)

    def _withdraw(self) -> None:
        if own := self._own():
            self.world.withdraw(self.chance.choice(own))

    def _replace(self) -> None:
        """Propose a new patchset of one change, many times over."""
        if own := self._own():
            change = self.world.open[self.chance.choice(own)].change
            for _ in range(self.chance.randrange(1, 6)):
                self.world.propose(self._patchset(change), approved=False)
