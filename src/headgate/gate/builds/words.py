"""Record reports of executors about a build: it has ended, it has paused, or it will fail."""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from headgate.gate.builds.carry import carried, changed, dropped, is_short, is_trusted
from headgate.gate.builds.graph import dependents
from headgate.gate.builds.start import run
from headgate.gate.state.actions import Action, Cancel
from headgate.gate.state.model import FINAL_GOOD, Build, BuildSet, Item, State, with_item, with_queue
from headgate.gate.state.returns import checked
from headgate.gate.state.works import BuildEnded, BuildFailing, BuildOutcome, BuildPaused
from headgate.gate.state.world import World

BuildWord = BuildEnded | BuildPaused | BuildFailing


def worded(state: State, word: BuildWord, world: World, actions: list[Action]) -> State:
    """Return the state after this report about a build, which may belong to an earlier base of its item."""
    build = word.outcome.build if isinstance(word, BuildEnded) else word.build
    for queue, item in state.items():
        if _has(item, word.job, build):
            return with_queue(state, with_item(queue, with_word(item, word, world, actions)))
    return state


def _has(item: Item, job: str, build: str) -> bool:
    found = item.buildset.builds.get(job) if item.buildset is not None else None
    return (found is not None and found.id == build) or carried(item, build) is not None


def with_word(item: Item, word: BuildWord, world: World, actions: list[Action]) -> Item:
    """Return the item after this report about one of its builds."""
    buildset = item.buildset
    own = buildset.builds.get(word.job) if buildset is not None else None
    build = word.outcome.build if isinstance(word, BuildEnded) else word.build
    if buildset is None or own is None or own.id != build:
        return _of_carried(item, build, word, actions)
    match word:
        case BuildEnded():
            return replace(item, buildset=_built(item, buildset, word, world, actions))
        case BuildPaused():
            return replace(item, buildset=_paused(buildset, word))
        case BuildFailing():
            return replace(item, buildset=_failing(buildset, word))
        case _:
            assert_never(word)


def _of_carried(item: Item, build: str, word: BuildWord, actions: list[Action]) -> Item:
    """Return the item after this report about a carried build, which may or may not count."""
    match word:
        case BuildEnded(outcome=outcome):
            outcome = outcome.fit()
            if outcome.result is None or not is_trusted(outcome) or not is_short(outcome):
                return dropped(item, build)
            one = carried(item, build)
            assert one is not None, "the caller has found it"
            return changed(item, build, **_end_of(one.build, outcome))
        case BuildPaused():
            # Jobs of the old base may have used its services, so it cannot count on the new base.
            actions.append(Cancel(build, build=True))
            return dropped(item, build)
        case BuildFailing():
            return changed(item, build, pre_fail=True)
        case _:
            assert_never(word)


def _end_of(build: Build, outcome: BuildOutcome) -> dict[str, object]:
    """Return the fields of a build that describe its end."""
    # Items behind have already been restarted without this one, so an announced failure is final.
    result = "FAILURE" if build.pre_fail and outcome.result == "SUCCESS" else outcome.result
    return {
        "result": result or "RETRY_LIMIT",
        "error": outcome.error,
        "start_ms": outcome.start_ms,
        "end_ms": outcome.end_ms,
        "log_url": checked(outcome.data).log_url or "",
        "data": outcome.data,
        "secret": outcome.secret,
        "image": outcome.image,
        "narrow": outcome.narrow,
        "excerpt": outcome.excerpt if result not in FINAL_GOOD else "",
        "course": outcome.course,
    }


def _built(item: Item, buildset: BuildSet, answer: BuildEnded, world: World, actions: list[Action]) -> BuildSet:
    build, outcome = buildset.builds.get(answer.job), answer.outcome.fit()
    # The report is a repetition, or arrives after the build was cancelled.
    if build is None or build.id != outcome.build or build.result is not None:
        return buildset
    job = next(j for j in buildset.jobs if j.id == answer.job)
    # An older executor does not confirm that it used only the named repositories.
    wide = build.origin != "" and outcome.result is not None and not is_trusted(outcome)
    again = wide or (outcome.result is None and build.attempt < job.attempts_max)
    if build.paused and (wide or outcome.result != "SUCCESS"):
        buildset = _without_dependents(buildset, build, actions, ended=again)
    if again:
        # An old executor is not the job's fault, so this does not count as an attempt.
        attempt = build.attempt + (not wide)
        next_one = run(item, buildset, job, attempt, world, actions, given=build.given)
        return replace(buildset, builds={**buildset.builds, job.id: next_one})
    ended = msgspec.structs.replace(build, **_end_of(build, outcome))
    return replace(buildset, builds={**buildset.builds, job.id: ended})


def _paused(buildset: BuildSet, answer: BuildPaused) -> BuildSet:
    build = buildset.builds.get(answer.job)
    if build is None or build.id != answer.build or build.result is not None or build.paused:
        return buildset
    # Data is checked here, too, as the jobs that depend on a paused build receive it long before the build ends.
    data = BuildOutcome(build.id, data=answer.data).fit().data
    paused = replace(build, paused=True, data=data, secret=answer.secret)
    return replace(buildset, builds={**buildset.builds, build.job: paused})


def _failing(buildset: BuildSet, answer: BuildFailing) -> BuildSet:
    build = buildset.builds.get(answer.job)
    if build is None or build.id != answer.build or build.result is not None:
        return buildset
    return replace(buildset, builds={**buildset.builds, build.job: replace(build, pre_fail=True)})


def _without_dependents(buildset: BuildSet, build: Build, actions: list[Action], *, ended: bool) -> BuildSet:
    """Return the buildset without the builds that depend on a paused build that has failed, and cancel them, as they
    have lost its services. `ended`: drop also those that have ended."""
    names = dependents(buildset, build.job)
    lost = {n: b for n, b in buildset.builds.items() if n in names and (ended or b.result is None)}
    actions.extend(Cancel(other.id, build=True) for other in lost.values() if other.result is None)
    return replace(buildset, builds={n: b for n, b in buildset.builds.items() if n not in lost})
