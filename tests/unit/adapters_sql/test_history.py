"""Test that an ended item is recorded once per tenant, and that the error for a file that is not a database names
it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest
from msgspec.structs import replace

from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.gate.state.change import Change
from headgate.map.records import Finished, FinishedBuild, HandAction
from headgate.ports.history import HistoryQuery, HistoryUnavailable

ENDED = Finished(
    buildset="bs1",
    tenant="acme",
    pipeline="gate",
    change=Change(connection="forge", project="git.example/app", branch="main", topic="t1", commit="a" * 40),
    event="ev1",
    result="SUCCESS",
    message="landed",
    enqueued_ms=1_000,
    ended_ms=9_000,
    builds=(FinishedBuild(uuid="b1", job_name="unit", result="SUCCESS", start_ms=2_000, end_ms=8_000),),
)


async def test_recording_twice_keeps_one(history: SqlHistory) -> None:
    await history.record(ENDED)
    await history.record(ENDED)
    assert [(row.uuid, row.job_name, row.result) for row in await history.builds("acme", HistoryQuery())] == [
        ("b1", "unit", "SUCCESS")
    ]
    buildset = await history.buildset("acme", "bs1")
    assert buildset is not None
    assert [build.uuid for build in buildset.builds or ()] == ["b1"]


async def test_a_reader_who_continues_below_the_last_number_misses_nothing(history: SqlHistory) -> None:
    for number, ended_ms in ((1, 9_000), (2, 7_000), (3, 8_000)):
        builds = tuple(
            FinishedBuild(
                uuid=f"b{number}{n}", job_name="unit", result="SUCCESS", requested_ms=1_000, start_ms=2_000 + n
            )
            for n in range(2)
        )
        await history.record(replace(ENDED, buildset=f"bs{number}", ended_ms=ended_ms, builds=builds))
    for ask in (history.builds, history.buildsets):
        every = sorted([one.id for one in await ask("acme", HistoryQuery())], reverse=True)
        found, most = list[int](), every[0]
        while rows := await ask("acme", HistoryQuery(limit=2, numbers=(None, most))):
            found += [one.id for one in rows]
            most = found[-1] - 1
        assert found == every and len(found) == len(set(found))
    assert [one.uuid for one in await history.buildsets("acme", HistoryQuery())] == ["bs1", "bs3", "bs2"]
    assert {one.execute_time for one in await history.builds("acme", HistoryQuery())} == {"1970-01-01T00:00:01"}


async def test_a_circle_is_found_by_each_of_its_changes(history: SqlHistory) -> None:
    first = ENDED.change
    second = replace(first, project="git.example/lib", topic="t2", commit="b" * 40, owner="bo <b@x>", ref="refs/for/x")
    circle = replace(ENDED, others=(second,))
    alone = replace(ENDED, buildset="bs2", change=second, builds=(), ended_ms=5_000)
    for buildset in (alone, circle, circle):
        await history.record(buildset)

    async def found(**equal: str) -> list[str]:
        query = HistoryQuery({name: (value,) for name, value in equal.items()})
        return [one.uuid for one in await history.buildsets("acme", query)]

    assert await found(change="t2", project="git.example/lib") == ["bs1", "bs2"]
    assert await found(change="t1", project="git.example/app") == ["bs1"]
    assert await found(change="t2", project="git.example/app") == [], "what is asked is asked of one change"
    assert await found(change="t2", result="FAILURE") == []
    circular = await history.buildset("acme", "bs1")
    assert circular is not None and [(ref.project, ref.change, ref.patchset) for ref in circular.refs] == [
        ("git.example/app", "t1", "a" * 40),
        ("git.example/lib", "t2", "b" * 40),
    ]
    assert circular.refs[1].author == "bo <b@x>" and circular.builds is not None
    (build,) = await history.builds("acme", HistoryQuery({"change": ("t2",)}))
    assert (build.uuid, build.buildset.refs) == ("b1", circular.refs) and build.ref == circular.refs[0]
    await history.record(replace(circle, others=()))
    assert await found(change="t2") == ["bs2"]


async def test_manual_actions_are_recorded_with_their_end(history: SqlHistory) -> None:
    action = HandAction(
        id="1",
        verb="dequeue",
        who="ann",
        authenticator="ours",
        origin="::1",
        at_ms=5,
        tenant="acme",
        details={"a": [1]},
    )
    ended = replace(action, outcome="done")
    for record in (action, ended, action, replace(action, id="2", at_ms=6)):
        await history.keep(record)
    assert await history.actions("acme", limit=10) == [replace(action, id="2", at_ms=6), ended]
    assert await history.actions("acme", limit=1, skip=1) == [ended]
    assert await history.actions("", limit=10) == []


async def test_a_query_that_takes_too_long_is_cancelled_and_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.adapters.sql.rows.PROGRESS_STEPS", 10)
    history = SqlHistory(f"sqlite:///{tmp_path / 'slow.db'}")
    await history.record(ENDED)
    monkeypatch.setattr("headgate.adapters.sql.rows.READ_MAX_S", -1.0)
    for ask in (history.builds, history.buildsets):
        with pytest.raises(HistoryUnavailable, match="narrow it down"):
            await ask("acme", HistoryQuery())
    await history.record(replace(ENDED, buildset="bs2"))
    monkeypatch.undo()
    assert len(await history.buildsets("acme", HistoryQuery())) == 2, "what is written is never cut off"
    history.close()


async def test_another_tenant_sees_nothing(history: SqlHistory) -> None:
    await history.record(ENDED)
    assert await history.builds("other", HistoryQuery()) == []
    assert await history.build("other", "b1") is None
    assert await history.buildset("other", "bs1") is None


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is not a database" * 100)
    with pytest.raises(HistoryError, match=r"broken\.db"):
        SqlHistory(f"sqlite:///{broken}")


def test_processes_started_at_the_same_time_share_a_new_database(tmp_path: Path) -> None:
    dburi = f"sqlite:///{tmp_path / 'new.sqlite'}"
    together = Barrier(6)

    def opened() -> None:
        together.wait()
        SqlHistory(dburi).close()

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(opened) for _ in range(6)]:
            done.result()


async def test_people_of_a_change_are_stored_with_its_result(history: SqlHistory) -> None:
    await history.record(ENDED)
    change = replace(ENDED.change, owner="Ada <ada@example.org>")
    named = replace(ENDED, buildset="bs2", change=change, proposers=("ada",), approvers=("grace", "heinz"), builds=())
    await history.record(named)
    bare, complete = await history.buildset("acme", "bs1"), await history.buildset("acme", "bs2")
    assert bare is not None and complete is not None
    assert [(one.author, one.proposers, one.approvers) for found in (bare, complete) for one in found.refs] == [
        ("", (), ()),
        ("Ada <ada@example.org>", ("ada",), ("grace", "heinz")),
    ]


async def test_refs_of_builds_are_listed_only_for_buildsets_of_the_tenant(history: SqlHistory) -> None:
    passed = replace(ENDED.builds[0], work="digest")
    await history.record(replace(ENDED, builds=(passed, replace(passed, uuid="b2", work=""))))
    await history.record(replace(ENDED, buildset="bs2", builds=(replace(passed, uuid="b3", work="of another"),)))
    assert await history.works("acme", "bs1") == {"b1": "digest"}
    assert await history.works("other", "bs1") == {} == await history.works("acme", "bs3")
    found = await history.build("acme", "b1")
    assert found is not None and b"digest" not in msgspec.json.encode(found), "it is of no use to anybody else"


async def test_the_latest_build_that_passed_on_the_same_inputs_is_known_to_its_tenant(history: SqlHistory) -> None:
    passed = replace(ENDED.builds[0], inputs="d1", returned={"v": 1}, log_url="http://l")
    later = replace(passed, uuid="b2", end_ms=9_000, returned={"v": 2}, final=False)
    failed = replace(passed, uuid="b3", end_ms=9_500, result="FAILURE")
    await history.record(replace(ENDED, builds=(passed, later, failed, replace(passed, uuid="b4", inputs=""))))
    await history.record(replace(ENDED, buildset="bs2", tenant="other", builds=(replace(passed, uuid="b5"),)))
    (found,) = (await history.passed("acme", ["d1", "d2"])).values()
    assert (found.uuid, found.start_ms, found.end_ms, found.returned) == ("b2", 2_000, 9_000, {"v": 2})
    assert (await history.passed("other", ["d1"]))["d1"].uuid == "b5"
    assert await history.passed("acme", ["d2", ""]) == {} == await history.passed("third", ["d1"])
    build = await history.build("acme", "b2")
    assert build is not None and b'"v"' not in msgspec.json.encode(build), "what jobs returned is not told"
