"""Play scenes with the gate: people act, mergers and jobs answer, and the play shows what the gate did.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as replace_dataclass

from msgspec.structs import replace

from headgate.config.forges.facts import Word
from headgate.config.model import FrozenJob, Pipeline, TriggerFilter, Window
from headgate.gate.absorb import absorb
from headgate.gate.builds.advance import taken_by
from headgate.gate.builds.graph import NOTHING_PROVIDED
from headgate.gate.decide import settle
from headgate.gate.items.enqueue import concluded
from headgate.gate.items.renewal import as_it_was, dissolved, remembered
from headgate.gate.rules.needs import ByTopic, topic_of
from headgate.gate.rules.requirements import vouching
from headgate.gate.state import management, works
from headgate.gate.state.actions import Action, Cancel, Land, Merge, Record, Report, Resume, Run, Supersede, Vouch
from headgate.gate.state.change import Change, ChangeState, EventKind, Tell, TriggerEvent
from headgate.gate.state.gitwork import MergeItem, Trees
from headgate.gate.state.model import Build, BuildSet, Item, State
from headgate.gate.state.world import Beside, Closing, Sought, Waiter, World
from headgate.testing.layouts import PlayLayout, PlayLayouts

ALL_KINDS = ("success", "failure", "start", "merge-conflict", "config-error", "no-jobs", "dequeue")


class Play:
    """Play with a gate. `act` performs events of people; `merges`, `passes` and `fails` answer; the other methods show
    the result."""

    def __init__(
        self, *jobs: FrozenJob | str, manager: str = "dependent", window: int = 20, layout: PlayLayout | None = None
    ) -> None:
        made = tuple(FrozenJob(name=j) if isinstance(j, str) else j for j in jobs or ("unit",))
        self.layout = layout or PlayLayout(made)
        reporters: dict[str, tuple[str, ...]] = {kind: ("git",) for kind in ALL_KINDS}
        event = (EventKind.APPROVED if manager == "dependent" else EventKind.PROPOSED).value
        self.pipeline = Pipeline(
            name="gate",
            manager=manager,
            triggers=(TriggerFilter("git", (event,)),),
            require_approved=("git",) if manager == "dependent" else (),
            reporters=reporters,
            lands=("git",) if manager == "dependent" else (),
            window=Window(size=window, floor=1),
        )
        self.waits = False
        """Whether proposed configuration is still being judged."""
        self.removed = ""
        """Reason for which the pipeline was removed; empty: it exists."""
        self.state, self.change_states = State(), dict[str, ChangeState]()
        self.held: dict[str, int] = {}
        self.closings: tuple[Closing, ...] = ()
        self.waiters: dict[str, tuple[Waiter, ...]] = {}
        self.merging: dict[str, Merge] = {}
        self.running: dict[str, Run] = {}
        self.landing: dict[str, Land] = {}
        self.reports: list[Report] = []
        self.resumed: list[str] = []
        self.past: BuildSet | None = NOTHING_PROVIDED
        """Past outcome of a needed patchset that is not being tested anywhere."""
        self.passed: Callable[[Sought], Build | None] | None = None
        """Returns a build that succeeded on the same inputs; None: there is none."""
        self.pipelines: dict[str, Pipeline] = {}
        """Pipelines that events of this one may trigger."""
        self.sent: list[tuple[str, TriggerEvent]] = []
        """(pipeline, event for it)"""
        self.superseded: list[tuple[str, str]] = []
        """(pipeline, key of the change that shall leave it)"""
        self.ended, self.messages = dict[str, str](), dict[str, str]()
        self.actions, self._clock = tuple[Action, ...](), 0
        """Actions of the last turn; the time."""

    # --- people

    def change(
        self, name: str, *needs: str, project: str = "p", files: tuple[str, ...] = ("f",), commit: str = ""
    ) -> Change:
        keys = tuple(self._key(need) for need in needs)
        number = commit or (name * 40)[:40]
        return Change("git", project, "master", name, number, ref=f"refs/for/master/{name}", files=files, needs=keys)

    def propose(self, change: Change) -> None:
        before, self.change_states[change.key] = self.change_states.get(change.key), ChangeState(change)
        self.event(EventKind.PROPOSED, change, fresh=before is None or not before.open)

    def approve(self, *names: str) -> None:
        """Approve changes, after proposing them on project `p` if that is necessary."""
        for name in names:
            if self._find(name) is None:
                self.propose(self.change(name))
            change_state = self._change_state(name)
            self.change_states[change_state.change.key] = replace(change_state, approved=change_state.change.commit)
            self.event(EventKind.APPROVED, change_state.change)

    def unapprove(self, name: str) -> None:
        """Withdraw the approval without an event."""
        change_state = self._change_state(name)
        self.change_states[change_state.change.key] = replace(change_state, approved="")
        self.act()

    def says(self, name: str, *people: str, commit: str = "", veto: bool = False, since_ms: int = 0) -> None:
        """Let each person approve the patchset under their own name, or object to the change."""
        for who in people:
            if self._find(name) is None:
                self.propose(self.change(name))
            change_state = self._change_state(name)
            kind = "vetoes" if veto else "approvals"
            word = Word(who, commit or change_state.change.commit, f"refs/{kind}/{who}/master/{name}", since_ms)
            others = tuple(one for one in getattr(change_state, kind) if one.who != who)
            self.change_states[change_state.change.key] = replace(change_state, **{kind: (*others, word)})
            if veto:
                self.act()
            else:
                self.event(EventKind.APPROVED, change_state.change)

    def unsays(self, name: str, who: str) -> None:
        """Withdraw a person's statement without an event."""
        change_state = self._change_state(name)
        approvals, vetoes = (
            tuple(w for w in words if w.who != who) for words in (change_state.approvals, change_state.vetoes)
        )
        self.change_states[change_state.change.key] = replace(change_state, approvals=approvals, vetoes=vetoes)
        self.act()

    def pushes(self, name: str) -> None:
        """Push the change to its branch, bypassing the gate. The gate learns of it in its next turn."""
        change_state = self._change_state(name)
        self.change_states[change_state.change.key] = replace(change_state, open=False, landed=True)
        self.act()

    def moves(self, before: str, after: str, project: str = "p") -> None:
        """Move the head of a branch."""
        update = Change("git", project, "master", commit=after, old_commit=before, ref="refs/heads/master")
        self.event(EventKind.REF_UPDATED, update)

    def close(self, queue: str = "", reason: str = "the freeze") -> None:
        """Close a queue, or the pipeline if none is named, so that nothing lands from it."""
        self.closings = (*self.closings, Closing("gate", queue, reason, "ada", self._clock + 1))
        # As in the gate, a turn absorbs the news.
        self.act()

    def open(self) -> None:
        """Open everything that was closed."""
        self.closings = ()
        self.act()

    def abandon(self, name: str) -> None:
        change_state = self._change_state(name)
        self.change_states[change_state.change.key] = replace(change_state, open=False)
        self.event(EventKind.ABANDONED, change_state.change)

    def event(self, kind: EventKind, change: Change, *, fresh: bool = False) -> None:
        self._clock += 1
        self.act(TriggerEvent(kind, change, f"event{self._clock}", fresh=fresh))

    def act(self, *events: TriggerEvent | works.Answer | management.Managed) -> None:
        """Take one turn."""
        # Turns happen at different times, which due times depend on.
        self._clock += 1000
        actions: list[Action] = []
        before, self._taken_by = self.state, taken_by(self.state)
        for event in events:
            self.state = absorb(self.state, event, self.world, actions)
        if self.removed:
            self.state = dissolved(self.state, self.removed, self.world, actions)
        else:
            self.state = concluded(before, settle(self.state, self.world, actions), actions, self.world)
            # Settled twice, as in a real turn: what `concluded` enqueues is decided about immediately.
            self.state = remembered(settle(self.state, self.world, actions), self.pipeline)
        self.actions = tuple(actions)
        for action in actions:
            self._take(action)

    # --- answers

    def merges(self, *names: str) -> None:
        """Answer the named merges, or all that were requested."""
        for name in names or tuple(self.merging_names):
            # The last element of a chain is the change that is merged.
            id = next(i for i, m in self.merging.items() if self._topic(m.work.chain[-1].commit) == name)
            work = self.merging.pop(id).work
            merged = {item.project: {"master": "+".join(i.commit for i in work.chain)} for item in work.chain}
            texts = {p: {"master": {"zuul.yaml": self.texts.get(p, "")}} for p in work.config_paths if p in self.texts}
            looked_at = merged | work.projects | work.given
            heads = {p: {"refs/heads/master": self.heads.get(p, "")} for p in looked_at}
            trees = {p: {"master": self.tree(p, work.chain)} for p in merged}
            beneath = tuple(one for one in work.chain if one.item != work.chain[-1].item)
            before = {p: {"master": self.tree(p)} for p in work.given}
            known = Trees(before, {p: {"master": self.tree(p, beneath)} for p in work.given})
            state = works.RepoState(work.chain, heads, merged, trees=trees, known=known)
            nothing = work.at is not None or bool(work.landed)  # is merged for the item itself
            own = [self._topic(one.commit) for one in work.chain if one not in beneath and not nothing]
            touched = tuple(self._touched(self._change_state(topic).change) for topic in own)
            self.act(works.MergeAnswer(work.buildset, True, state=state, config=texts, touched=touched))

    def _touched(self, change: Change) -> tuple[str, ...] | None:
        more = self.displaced.get(change.topic, ())
        return None if change.files is None or more is None else (*change.files, *more)

    def tree(self, project: str, chain: Sequence[MergeItem] = ()) -> str:
        """Return the content of a project's branch with a chain on it."""
        return "+".join((self.heads.get(project, ""), *(one.commit for one in chain if one.project == project)))

    _taken_by: Mapping[str, tuple[str, ...]] = {}
    """What builds held at the beginning of the turn."""
    heads: Mapping[str, str] = {}
    """project -> commit at the head of its branch, as reported by mergers"""
    most: tuple[int | None, int | None] = (None, None)
    """The tenant's limits on the dependencies of a change, and on the changes in the pipeline; None: no limit."""
    displaced: Mapping[str, tuple[str, ...] | None] = {}
    """change -> paths that only its merge changes; None: they cannot be listed"""
    texts: Mapping[str, str] = {}
    """project -> text of its proposed zuul.yaml"""
    contents: Mapping[str, Mapping[str, str]] = {}
    """project -> branch -> digest of the configuration that the layout was made from"""

    def conflicts(self, name: str, blame: str = "") -> None:
        id = next(i for i, m in self.merging.items() if self._topic(m.work.chain[-1].commit) == name)
        work = self.merging.pop(id).work
        guilty = next(i.item for i in work.chain if self._topic(i.commit) == (blame or name))
        self.act(works.MergeAnswer(work.buildset, False, guilty, "conflicts in f"))

    def ends(self, name: str, job: str, result: str | None, **data: object) -> None:
        spec = self.running_spec(name, job)
        del self.running[spec.build]
        outcome = works.BuildOutcome(
            spec.build, result, data=dict(data), start_ms=1_000, end_ms=63_000, narrow=spec.job.reuse
        )
        self.act(works.BuildEnded(spec.buildset, spec.job.id, outcome))

    def running_spec(self, name: str, job: str) -> works.BuildSpec:
        return next(r.spec for r in self.running.values() if (r.spec.change.topic, r.spec.job.name) == (name, job))

    def pauses(self, name: str, job: str, **data: object) -> None:
        """Pause a build, which then waits for the jobs that depend on it."""
        spec = self.running_spec(name, job)
        self.act(works.BuildPaused(spec.buildset, spec.job.id, spec.build, dict(data)))

    def begins_to_fail(self, name: str, job: str = "unit") -> None:
        """Report that a build will fail while it still runs."""
        spec = self.running_spec(name, job)
        self.act(works.BuildFailing(spec.buildset, job, spec.build))

    def passes(self, name: str, *jobs: str) -> None:
        """Let the named jobs succeed, or all running jobs."""
        for job in jobs or tuple(j for n, j in self.builds if n == name):
            self.ends(name, job, "SUCCESS")

    def fails(self, name: str, job: str = "unit") -> None:
        self.ends(name, job, "FAILURE")

    merging_there: frozenset[str] = frozenset()
    """Connections whose forge performs the merges."""

    def lands(
        self,
        name: str,
        *,
        moved: bool = False,
        error: str = "",
        shut: bool = False,
        commit: str = "",
        differs: bool = False,
    ) -> None:
        """Land a change. `commit` is the commit that a forge made of it."""
        id = next(i for i, action in self.landing.items() if action.work.change.topic == name)
        work = self.landing.pop(id).work
        landed = not (moved or error or shut)
        for part in work.parts if landed else ():
            change_state = self.change_states[part.change.key]
            self.change_states[part.change.key] = replace(change_state, open=False, landed=True)
        key = work.change.key if work.change.connection in self.merging_there else ""
        answer = works.LandAnswer(work.buildset, landed, moved, error, shut, work.change.project, key, commit, differs)
        self.act(answer)

    # --- the stage

    @property
    def world(self) -> World:
        layouts, now_ms = PlayLayouts(self.layout, self.contents, self.waits), self._clock
        more = (self.state.disabled, *self.most, self.waiters, self.closings)
        pipeline = as_it_was("gate", self.state.remains) if self.removed else self.pipeline
        change_states, topics = self.change_states, dict[tuple[str, str], list[str]]()
        for key, change_state in change_states.items():
            if change_state.open and (where := topic_of(change_state)) is not None:
                topics.setdefault(where, []).append(key)
        seen = ByTopic(change_states, topics, self.layout) if topics else change_states
        world = World("t", pipeline, layouts, seen, now_ms, "http://h", self.held, *more)
        beside = Beside(self.pipelines, lambda _: self.past, self.passed)
        return replace_dataclass(world, beside=beside, merging=self.merging_there, taken_by=self._taken_by)

    @property
    def queue(self) -> list[str]:
        """Return the changes, head first; those of one item joined by `+`."""
        return ["+".join(change.topic for change in item.changes) for _, item in self.state.items()]

    @property
    def builds(self) -> list[tuple[str, str]]:
        return [(run.spec.change.topic, run.spec.job.name) for run in self.running.values()]

    @property
    def merging_names(self) -> list[str]:
        return [self._topic(m.work.chain[-1].commit) for m in self.merging.values()]

    @property
    def landing_names(self) -> list[str]:
        return [action.work.change.topic for action in self.landing.values()]

    def beneath(self, name: str) -> list[str]:
        """Return the changes `name` is tested on, furthest first."""
        item = self.item(name)
        assert item.buildset is not None and item.buildset.state is not None, f"{name} has not merged"
        return [self._topic(i.commit) for i in item.buildset.state.chain if i.item != item.id]

    def item(self, name: str) -> Item:
        """Return the item that holds the change."""
        return next(i for _, i in self.state.items() if i.live and any(one.topic == name for one in i.changes))

    def _take(self, action: Action) -> None:  # noqa: C901 - one case for each kind of action
        match action:
            case Merge():
                self.merging[action.id] = action
            case Run():
                self.running[action.id] = action
            case Land():
                self.landing[action.id] = action
            case Report():
                self.reports.append(action)
            case Cancel(id):
                self.running.pop(id, None)
                self.merging.pop(id, None)
            case Resume(id):
                self.resumed.append(self.running[id].spec.job.name)
            case Tell(pipeline, event):
                self.sent.append((pipeline, event))
            case Vouch(change, vouched):
                self.change_states[change.key] = vouching(self.change_states[change.key], vouched)
            case Supersede(pipeline, key):
                self.superseded.append((pipeline, key))
            case Record(item, result, message):
                for change in item.changes:
                    self.ended[change.topic] = result
                    self.messages[change.topic] = message

    def _topic(self, commit: str) -> str:
        return next(s.change.topic for s in self.change_states.values() if s.change.commit == commit)

    def _find(self, name: str) -> ChangeState | None:
        return next((s for s in self.change_states.values() if s.change.topic == name), None)

    def _change_state(self, name: str) -> ChangeState:
        found = self._find(name)
        assert found is not None, f"nobody proposed {name}"
        return found

    def _key(self, name: str) -> str:
        return found.change.key if (found := self._find(name)) else f"p/master/{name}"
