"""Test invariants after every act of random plays."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenJob, JobDependency, JobSemaphore
from headgate.gate.absorb import absorb
from headgate.gate.decide import settle
from headgate.gate.items.trial import idle_since, never_idle, unfinished
from headgate.gate.state.actions import Action, Cancel, Land, Record, Supersede, Vouch
from headgate.gate.state.change import ChangeState, EventKind, TriggerEvent
from headgate.gate.state.management import Dequeue, Enqueue, LayoutChanged, Managed, Promote
from headgate.gate.state.works import Answer, BuildEnded, BuildOutcome, BuildPaused, LandAnswer, MergeAnswer, RepoState
from headgate.gate.state.world import Closing
from headgate.testing import plays
from headgate.testing.layouts import PlayLayout
from tests.tiers import share
from tests.unit.gate.restarts import StoredState

SEEDS, ACTS = int(os.environ.get("PLAY_SEEDS", share(60))), 40
DRAINED_WITHIN = 400
CHUNK = 6
JOBS = (
    FrozenJob(name="unit", attempts_max=2, semaphores=(JobSemaphore("one"),)),
    FrozenJob(name="serves", attempts_max=2, provides=("image",)),
    FrozenJob(name="uses", dependencies=(JobDependency("serves"),), requires=("image",)),
    FrozenJob(name="docs", voting=False, dependencies=(JobDependency("unit", soft=True),)),
    FrozenJob(name="tells", type="reporter"),
)
PROJECTS = {"p": "shared", "q": "shared", "r": "apart"}
Event = TriggerEvent | Answer | Managed


@dataclass(slots=True)
class Improvised:
    """Play random acts."""

    chance: random.Random
    play: plays.Play
    stored: StoredState = field(default_factory=StoredState)
    count: int = 0
    settled: bool = False

    @classmethod
    def of(cls, seed: int) -> Improvised:
        chance = random.Random(seed)
        manager = ("dependent", "dependent", "independent", "serial", "supercedent")[seed % 5]
        queues = PROJECTS if chance.random() < 0.7 else {}
        layout = PlayLayout(JOBS, chance.random() < 0.2, queues, {"one": 1 + seed % 2})
        layout.circles = seed % 2 == 0
        play = plays.Play(manager=manager, window=chance.choice((0, 1, 3, 20)), layout=layout)
        play.texts = {"q": chance.choice(("unit more", "broken"))}
        if chance.random() < 0.3:
            play.pipeline = replace(play.pipeline, disable_after=2, dequeue_on_new_patchset=False)
        return cls(chance, play)

    def acts(self, *events: Event) -> None:
        """Take one turn, and check the invariants after it."""
        before, play = self.play.state, self.play
        if self.settled:
            self._looks_only_at_what_moved(*events)
        play.act(*events)
        for event in events:
            self._twice_is_once(event, before)
        self._is_settled()
        play.state = self.stored.reloaded(play.state)

    def _twice_is_once(self, event: Event, before: object) -> None:
        first, second = list[Action](), list[Action]()
        once = absorb(before, event, self.play.world, first)  # type: ignore[arg-type]  # a state
        twice = absorb(once, event, self.play.world, second)
        assert twice == once, f"{event} counts twice"
        names = {_name(action) for action in first}
        assert {_name(action) for action in second} <= names, f"{event} asks twice"

    def _is_settled(self) -> None:
        # A canceled build holds its semaphores until it has ended, which is not before the next turn.
        cancels: list[Action] = [action for action in self.play.actions if isinstance(action, Cancel)]
        actions = list(cancels)
        again = settle(self.play.state, self.play.world, actions)
        self.settled = not unfinished(list(self.play.actions))
        if self.settled:
            assert (again, actions) == (self.play.state, cancels), "what is settled is not settled"

    def _looks_only_at_what_moved(self, *events: Event) -> None:
        """Update the facts first, as the gate does before it relies on its decisions."""
        play, states = self.play, []
        before = settle(play.state, play.world, [])
        for idle in (never_idle, idle_since(before)):
            actions, state = list[Action](), before
            for event in events:
                state = absorb(state, event, play.world, actions)  # type: ignore[arg-type]  # a state
            states.append((settle(state, play.world, actions, idle), actions))
        assert states[0] == states[1], "a queue that was not looked at had something to do"

    # --- what may happen

    def step(self) -> None:
        play = self.play
        may = [self._proposes, self._proposes, self._by_hand, self._withdraws, self._again, self._closes]
        may += [self._needs_each_other] * play.layout.circles
        may += [self._merged] * 4 * bool(play.merging) + [self._ended] * 6 * bool(play.running)
        may += [self._landed] * 4 * bool(play.landing)
        self.chance.choice(may)()

    def _proposes(self) -> None:
        self.count += 1
        open = [s.change.key for s in self.play.change_states.values() if s.open]
        needs = (self.chance.choice(open),) if open and self.chance.random() < 0.3 else ()
        project = self.chance.choice([*PROJECTS])
        files = ("f", "zuul.yaml") if self.chance.random() < 0.3 else ("f",)
        change = self.play.change(f"t{self.count}", project=project, files=files, commit=f"{self.count:040x}")
        self._seen(ChangeState(replace(change, needs=needs)))

    def _again(self) -> None:
        """Propose a newer patchset."""
        if open := [s for s in self.play.change_states.values() if s.open]:
            self.count += 1
            change_state = self.chance.choice(open)
            self._seen(ChangeState(replace(change_state.change, commit=f"{self.count:040x}")))

    def _needs_each_other(self) -> None:
        """Propose newer patchsets of a change and of its dependency, so that each needs the other."""
        open = [s.change for s in self.play.change_states.values() if s.open]
        if len(open) < 2:
            return
        one, other = self.chance.sample(open, k=2)
        for change, needed in ((one, other), (other, one)):
            self.count += 1
            needs = tuple(dict.fromkeys((*change.needs, needed.key)))
            self._seen(ChangeState(replace(change, commit=f"{self.count:040x}", needs=needs)))

    def _seen(self, change_state: ChangeState) -> None:
        change = change_state.change
        self.play.change_states[change.key] = change_state
        self.acts(TriggerEvent(EventKind.PROPOSED, change, f"proposed{self.count}"))
        if self.chance.random() < 0.8:
            self.play.change_states[change.key] = replace(change_state, approved=change.commit)
            self.acts(TriggerEvent(EventKind.APPROVED, change, f"approved{self.count}"))

    def _withdraws(self) -> None:
        open = [key for key, s in self.play.change_states.items() if s.open]
        if open and self.chance.random() < 0.3:
            change_state = self.play.change_states[key := self.chance.choice(open)]
            self.play.change_states[key] = replace(change_state, open=False)
            self.acts(TriggerEvent(EventKind.ABANDONED, change_state.change, f"gone{self.count}"))

    def _closes(self) -> None:
        """Close or open, sometimes only one queue."""
        before, self.count = self.play.closings, self.count + 1
        queue = self.chance.choice(("", "shared"))
        self.play.closings = () if before else (Closing("gate", queue, "for now", "ada", self.count),)
        self.acts()
        if self.play.closings:
            assert not [action for action in self.play.actions if isinstance(action, Land)] or queue, "nothing lands"

    def _by_hand(self) -> None:
        change_states = list(self.play.change_states.values())
        if not change_states or self.chance.random() < 0.5:
            return
        self.count += 1
        chosen = self.chance.sample(change_states, k=min(2, len(change_states)))
        change = chosen[0].change
        works: list[Managed] = [
            Dequeue(change.key),
            Enqueue(change, f"hand{self.count}", unapproved=True),
            Promote(tuple(s.change.key for s in chosen), f"hand{self.count}", unapproved=True),
            LayoutChanged("another"),
        ]
        self.acts(self.chance.choice(works))

    def _merged(self, *, good: bool = False) -> None:
        work = self.play.merging.pop(self.chance.choice(sorted(self.play.merging))).work
        if not good and self.chance.random() < 0.15:
            guilty = self.chance.choice(work.chain).item
            self.acts(MergeAnswer(work.buildset, False, guilty, "conflicts in f"))
            return
        merged = {item.project: {"master": "+".join(i.commit for i in work.chain)} for item in work.chain}
        texts = {p: {"master": {"zuul.yaml": self.play.texts[p]}} for p in work.config_paths if p in self.play.texts}
        self.acts(MergeAnswer(work.buildset, True, state=RepoState(work.chain, {}, merged), config=texts))

    def _ended(self, *, good: bool = False) -> None:
        spec = self.play.running[self.chance.choice(sorted(self.play.running))].spec
        if spec.job.name == "serves" and self.chance.random() < 0.6:
            self.acts(BuildPaused(spec.buildset, spec.job.id, spec.build, {"at": "here"}))
            return
        del self.play.running[spec.build]
        result = "SUCCESS" if good else self.chance.choice(("SUCCESS", "SUCCESS", "SUCCESS", "FAILURE", None))
        data = {"zuul": {"artifacts": [{"name": "image", "url": "http://i/"}]}} if spec.job.provides else {}
        outcome = BuildOutcome(spec.build, result, data=data, start_ms=1_000, end_ms=63_000)
        self.acts(BuildEnded(spec.buildset, spec.job.id, outcome))

    def _landed(self, *, good: bool = False) -> None:
        work = self.play.landing.pop(self.chance.choice(sorted(self.play.landing))).work
        how = "ok" if good else self.chance.choice(("ok", "ok", "ok", "moved", "refused"))
        for change in (part.change for part in work.parts):
            known = self.play.change_states[change.key]
            if how == "ok" and known.change.commit == change.commit:
                self.play.change_states[change.key] = replace(known, open=False, landed=True)
        of = work.change.project if work.later or work.rest else ""
        self.acts(LandAnswer(work.buildset, how == "ok", how == "moved", "no" if how == "refused" else "", of))

    def ends_well(self) -> None:
        """Answer every request with success, until there are no more requests."""
        play = self.play
        play.closings = ()
        for _ in range(DRAINED_WITHIN):
            if play.landing:
                self._landed(good=True)
            elif play.merging:
                self._merged(good=True)
            elif play.running:
                self._ended(good=True)
            else:
                self.acts(LayoutChanged("the same"))
                if not (play.landing or play.merging or play.running):
                    return
        raise AssertionError(f"not at its end: {play.queue}")


def _name(action: Action) -> object:
    """Do the same for actions that happen once, however often they are requested."""
    match action:
        case Record(item, result, _):
            return item.id, result
        case Supersede() | Vouch():
            return action
        case _:
            return type(action), action.id


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_after_any_play_the_state_is_settled_and_equals_the_stored_one(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        play = Improvised.of(seed)
        try:
            for _ in range(ACTS):
                play.step()
            play.ends_well()
            assert play.play.queue == [], "somebody waits, and nobody is asked for anything"
            assert not [path for path in play.stored.entries if "/item/" in path], "records are left"
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
