"""Test what the driver sees of a real Gerrit: with a stream, without one, and after an outage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headgate.adapters.forges.gerrit.driver import GerritForge
from headgate.adapters.forges.gerrit.watchlist import GerritPace
from headgate.config.forges.facts import ForgeAccount
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import EventKind, numbered
from headgate.ports.forge import Hint
from headgate.testing.servers.faults import Proxy
from headgate.testing.servers.gerrit import LocalGerrit
from headgate.testing.servers.gerritpeople import Clone, ReviewingPeople

from .seeing import Seen, watched

Forge = Callable[..., Awaitable[GerritForge]]
SLOW = GerritPace(lately_s=3600.0, all_s=3600.0, refs_s=3600.0, refs_streamed_s=3600.0, retry_min_s=0.1)
"""Without a hint, nothing is polled."""
HOST = "127.0.0.1"


def of(*projects: str) -> dict[str, TenantProject]:
    return {f"{HOST}/{one}": TenantProject(f"{HOST}/{one}", one, "review", trusted=False) for one in projects}


@pytest.mark.long
@pytest.mark.parametrize("stream", ["true", "false"])
async def test_actions_of_people_become_events_with_the_names_of_gerrit(
    stream: str, people: ReviewingPeople, project: str, clone: Clone, past_review: Clone, forge: Forge
) -> None:
    seen = Seen()
    before = clone.proposes({"before": "1\n"})
    async with watched(await forge(stream_events=stream), of(project), seen):
        key = numbered(f"{HOST}/{project}", str(before.number))
        assert key in seen.known and not seen.events, "of what was there at the first look no event tells"
        change = clone.proposes({"a": "1\n"}, "Title\n\nWhy.")
        await seen.until(lambda: seen.reported("patchset-created", change.number))
        event = seen.reported("patchset-created", change.number)[0]
        assert event.kind is EventKind.PROPOSED and event.fresh and event.change.commit == change.commit
        assert (event.change.patchset, event.change.branch, event.change.owner) == ("1", "master", "alice")
        assert event.change.message.startswith("Title\n\nWhy.") and event.change.files == ("a",)
        assert event.change.url.endswith(f"/c/{project}/+/{change.number}")

        people.bob.votes(change.number, "recheck please", Code_Review=2)
        await seen.until(lambda: seen.reported("comment-added", change.number))
        happening = seen.reported("comment-added", change.number)[0].happening
        assert happening is not None and happening.who == ForgeAccount("bob", "bob@example.org")
        assert "recheck please" in happening.comments[0] and "Code-Review+2" in happening.comments[0]
        assert [(vote.label, vote.value, vote.old_value) for vote in happening.votes] == [("Code-Review", "2", "0")]

        newer = clone.proposes({"a": "2\n"}, change_id=change.change_id)
        await seen.until(lambda: len(seen.reported("patchset-created", change.number)) == 2)
        again = seen.reported("patchset-created", change.number)[1]
        assert (again.change.commit, again.change.patchset, again.fresh) == (newer.commit, "2", False)

        people.alice.tags(change.number, "red")
        people.alice.unfinished(change.number)
        await seen.until(lambda: seen.reported("wip-state-changed", change.number))
        tagged = seen.reported("hashtags-changed", change.number)[0].happening
        assert (
            tagged is not None and tagged.added == ("red",) and tagged.who == ForgeAccount("alice", "alice@example.org")
        )

        people.alice.abandons(change.number)
        await seen.until(lambda: seen.reported("change-abandoned", change.number))
        people.alice.restores(change.number)
        await seen.until(lambda: seen.reported("change-restored", change.number))
        assert seen.kinds(change.number).count(EventKind.ABANDONED) == 1

        pushed = past_review.pushes({"b": "1\n"})
        await seen.until(lambda: seen.heads[f"{HOST}/{project}"]["refs/heads/master"] == pushed)
        update = next(one for one in seen.events if one.kind is EventKind.REF_UPDATED)
        assert (update.change.commit, update.change.files) == (pushed, ("b",))
    ids = [event.id for event in seen.events]
    assert len(ids) == len(set(ids))


@pytest.mark.long
async def test_events_that_happened_while_nobody_polled_are_found(
    people: ReviewingPeople, project: str, clone: Clone, forge: Forge
) -> None:
    seen = Seen()
    voted, dropped = clone.proposes({"a": "1\n"}), clone.proposes({"b": "1\n"})
    merged = clone.proposes({"c": "1\n"})
    people.bob.votes(voted.number, "first")
    async with watched(await forge(SLOW, stream_events="false"), of(project), seen):
        assert not seen.events
    people.bob.votes(voted.number, "second", Code_Review=1)
    people.bob.votes(voted.number, "third", Code_Review=2)
    people.alice.abandons(dropped.number)
    people.bob.votes(merged.number, Code_Review=2)
    people.headgate.votes(merged.number, Verified=2)
    people.headgate.submits(merged.number)
    fresh = clone.proposes({"d": "1\n"})
    async with watched(await forge(SLOW, stream_events="false"), of(project), seen):
        await seen.until(lambda: seen.reported("patchset-created", fresh.number))
        await seen.until(lambda: seen.reported("change-merged", merged.number))
    comments = [one.happening.comments[0] for one in seen.reported("comment-added", voted.number) if one.happening]
    assert [text.splitlines()[-1] for text in comments] == ["second", "third"]
    assert seen.kinds(dropped.number) == [EventKind.ABANDONED]
    key = numbered(f"{HOST}/{project}", str(merged.number))
    assert seen.known[key].landed and not seen.known[key].open
    assert len(seen.reported("patchset-created", fresh.number)) == 1
    count = len(seen.events)
    async with watched(await forge(SLOW, stream_events="false"), of(project), seen):
        assert len(seen.events) == count, "the same look again changes nothing"


@pytest.mark.long
async def test_a_stack_is_read_with_its_bases(
    people: ReviewingPeople, project: str, clone: Clone, forge: Forge
) -> None:
    seen = Seen()
    below = clone.proposes({"a": "1\n"})
    above = clone.proposes({"b": "1\n"}, on=below.commit)
    low, high = (numbered(f"{HOST}/{project}", str(one.number)) for one in (below, above))
    async with watched(await forge(stream_events="false"), of(project), seen):
        assert seen.known[high].change.bases == (low,) and seen.known[high].change.needs == (low,)
        assert not seen.known[low].change.needs

        assert not seen.known[high].change.stale
        clone.proposes({"a": "2\n"}, change_id=below.change_id)
        await seen.until(lambda: seen.known[high].change.stale)
        assert seen.known[high].change.stale == (low,) and seen.known[high].change.bases == (low,)
        people.alice.abandons(below.number)
        await seen.until(lambda: not seen.known[low].open)
        assert seen.known[high].change.needs == (low,), "what was given up is in the way"


async def test_urls_name_changes(people: ReviewingPeople, project: str, clone: Clone, forge: Forge) -> None:
    seen, watching, url = Seen(), await forge(stream_events="false"), people.url
    change = clone.proposes({"a": "1\n"})
    key = numbered(f"{HOST}/{project}", str(change.number))
    assert (
        watching.named(f"{url}/c/{project}/+/{change.number}") == key and watching.named(f"{url}/{change.number}") == ""
    )
    async with watched(watching, of(project), seen):
        assert watching.named(f"{url}/{change.number}") == key, "once it was seen its number is enough"
        assert watching.named("https://elsewhere.example/1") == ""


async def test_rules_that_only_wait_for_our_vote_are_distinguished(
    people: ReviewingPeople, project: str, clone: Clone, forge: Forge
) -> None:
    change = clone.proposes({"a": "1\n"})
    people.requires(project, "Resolved", "-has:unresolved")
    people.bob.remarks(change.number, "a", "why?")
    people.bob.votes(change.number, Code_Review=2)
    people.alice.unfinished(change.number)
    found = await (await forge()).look_up(numbered(f"{HOST}/{project}", str(change.number)))
    assert found is not None and found.details is not None and found.details.rules is not None
    unmet = {rule.text: rule.missing for rule in found.details.rules if rule.met is not True}
    assert len(unmet) == 3 and ("Verified",) in unmet.values()
    assert any("Resolved" in text and missing == ("has:unresolved",) for text, missing in unmet.items())
    assert any("work in progress" in text and not missing for text, missing in unmet.items())
    assert found.details.draft and found.details.unresolved == 1 and found.details.us == ("headgate",)
    assert await (await forge()).look_up(f"{HOST}/elsewhere#{change.number}") is None
    assert await (await forge()).look_up(f"{HOST}/{project}#999999") is None


async def test_a_hint_is_answered_and_the_change_that_it_names_is_polled(
    people: ReviewingPeople, project: str, clone: Clone, forge: Forge
) -> None:
    seen, watching = Seen(), await forge(SLOW, stream_events="false")
    async with watched(watching, of(project), seen):
        change = clone.proposes({"a": "1\n"})
        watching.stir(Hint("h1", f"{HOST}/{project}", str(change.number)))
        await seen.until(lambda: seen.reported("patchset-created", change.number))
        watching.stir(Hint("h1", f"{HOST}/{project}", str(change.number)))
        watching.stir(Hint("h2", f"{HOST}/{project}", "999999"))
        watching.stir(Hint("h3", f"{HOST}/{project}", "no number"))
        await seen.until(lambda: {"h1", "h2", "h3"} <= set(seen.answered))
    assert len(seen.reported("patchset-created", change.number)) == 1


@pytest.mark.long
async def test_a_stream_that_dies_is_noticed_and_nothing_is_lost(
    running: LocalGerrit, people: ReviewingPeople, project: str, clone: Clone, forge: Forge
) -> None:
    proxy = Proxy("127.0.0.1", running.ssh_port)
    await proxy.start()
    seen = Seen()
    pace = GerritPace(lately_s=0.5, all_s=3600.0, refs_streamed_s=3600.0, silent_s=1.0, retry_min_s=0.1)
    known = running.site / f"known_{proxy.port}"
    known.write_text(
        "".join(f"{one}\n".replace(f":{running.ssh_port} ", f":{proxy.port} ") for one in running.host_keys)
    )
    through = await forge(pace, port=str(proxy.port), known_hosts=str(known), keepalive="0")
    canonical = f"{HOST}/{project}"
    try:
        async with watched(through, of(project), seen):
            first = clone.proposes({"a": "1\n"})
            await seen.until(lambda: seen.reported("patchset-created", first.number))
            proxy.deaf()  # the stream is silent, and the connection seems to be open
            silent = clone.proposes({"b": "1\n"})
            await seen.until(lambda: seen.reported("patchset-created", silent.number))
            await seen.until(lambda: "did not report" in seen.problems.get(canonical, ""))
            proxy.restore()
            await seen.until(lambda: not seen.problems[canonical])
            proxy.refuse()
            await seen.until(lambda: "ssh ended" in seen.problems[canonical])
            refused = clone.proposes({"c": "1\n"})
            await seen.until(lambda: seen.reported("patchset-created", refused.number))
    finally:
        await proxy.stop()


async def test_an_unavailable_gerrit_is_waited_for(
    running: LocalGerrit, project: str, clone: Clone, forge: Forge
) -> None:
    proxy = Proxy("127.0.0.1", running.port)
    await proxy.start()
    seen, canonical = Seen(), f"{HOST}/{project}"
    try:
        async with watched(await forge(baseurl=f"http://127.0.0.1:{proxy.port}"), of(project), seen):
            before = clone.proposes({"a": "1\n"})
            await seen.until(lambda: seen.reported("patchset-created", before.number))
            proxy.refuse()
            after = clone.proposes({"b": "1\n"})
            await seen.until(lambda: "cannot be queried" in seen.problems.get(canonical, ""))
            assert not seen.reported("patchset-created", after.number)
            proxy.restore()
            await seen.until(lambda: seen.reported("patchset-created", after.number))
            await seen.until(lambda: not seen.problems[canonical])
    finally:
        await proxy.stop()
    assert len(seen.reported("patchset-created", before.number)) == 1


async def test_git_goes_over_ssh_where_the_operator_says_so(project: str, past_review: Clone, forge: Forge) -> None:
    seen = Seen()
    async with watched(await forge(git_over_ssh="true", stream_events="false"), of(project), seen):
        pushed = past_review.pushes({"a": "1\n"})
        await seen.until(lambda: seen.heads[f"{HOST}/{project}"]["refs/heads/master"] == pushed)
        assert not any(seen.problems.values())
