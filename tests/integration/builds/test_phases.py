"""Test which files run, in which order and with which data, and the build's result."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.process.phaselimits import PhaseLimits
from headgate.config.model import Playbook, RequiredProject
from headgate.ports.work import CheckoutError
from headgate.testing.clock import DEADLINE_S
from tests.waiting import until

from .bench import PROJECT, Alone, Bench

SAYS = "echo said-$(basename $0)"


def printed_words(bench: Bench) -> list[str]:
    return [line.rpartition("said-")[2] for line in bench.log.splitlines() if "| said-" in line]


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
async def test_phases_come_in_order(tmp_path: Path, sandbox: str) -> None:
    bench = Bench(tmp_path, sandbox)
    books = {name: bench.script(name, SAYS) for name in ("base-pre", "pre", "run-1", "run-2", "post", "base-post")}
    outcome = await bench.build(
        pre_run=(books["base-pre"], books["pre"]),
        run=(books["run-1"], books["run-2"]),
        post_run=(books["post"], books["base-post"]),
    )
    assert outcome.result == "SUCCESS" and printed_words(bench) == list(books)
    assert 0 < outcome.start_ms <= outcome.end_ms and not (tmp_path / "builds" / bench.id).exists()


async def test_run_stops_at_the_first_failure_and_post_does_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    good, bad = bench.script("good", SAYS), bench.script("bad", f"{SAYS}; exit 5")
    outcome = await bench.build(pre_run=(good,), run=(bad, good), post_run=(bad, good))
    assert outcome.result == "FAILURE" and "run: bad: exit status 5" in outcome.error
    assert printed_words(bench) == ["good", "bad", "bad", "good"]


async def test_after_a_failed_pre_run_only_levels_that_were_reached_are_left_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    outer, inner, deepest = (replace(bench.script(f"level-{n}", SAYS), nesting=n) for n in range(3))
    failing = replace(bench.script("failing", f"{SAYS}; exit 1"), nesting=1)
    outcome = await bench.build(pre_run=(outer, failing, deepest), run=(outer,), post_run=(deepest, inner, outer))
    assert outcome.result is None and printed_words(bench) == ["level-0", "failing", "level-1", "level-0"]


@pytest.mark.long
async def test_results_have_their_names(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    good, bad = bench.script("good", "true"), bench.script("bad", "false")
    slow = bench.script("slow", "sleep 20")
    tidy, of_old = replace(bad, cleanup=True), replace(bad, cleanup=True, ignore_result=True)
    assert (await bench.build(run=(good,), post_run=(bad,))).result == "POST_FAILURE"
    assert (await bench.build(run=(bad,), post_run=(bad,))).result == "FAILURE"
    assert (await bench.build(run=(good,), post_run=(tidy,))).result == "POST_FAILURE"
    assert (await bench.build(run=(good,), post_run=(of_old,))).result == "SUCCESS", "cleanup-run has no say"
    assert (await bench.build(pre_run=(bad,), run=(good,))).result is None
    assert (await bench.build(pre_run=(bad,), run=(good,), attempt=3)).result == "RETRY_LIMIT"
    assert (await bench.build(run=(slow,), timeout_s=1)).result == "TIMED_OUT"
    assert (await bench.build(run=(good,), post_run=(slow,), post_timeout_s=1)).result == "POST_FAILURE"
    slow_to_begin: dict[str, Any] = {"pre_run": (slow,), "run": (good,), "pre_timeout_s": 1, "timeout_s": 90}
    assert (await bench.build(**slow_to_begin)).result is None, "it is tried again"
    assert (await bench.build(**slow_to_begin, attempt=3)).result == "RETRY_LIMIT"


async def test_a_job_that_says_nothing_of_time_has_the_sites_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=PhaseLimits(timeout_s=1))
    outcome = await bench.build(run=(bench.script("slow", "sleep 20"),))
    assert outcome.result == "TIMED_OUT" and "its time limit" in outcome.error


@pytest.mark.long
async def test_pre_run_and_run_share_their_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    half = bench.script("half", "sleep 3")
    assert (await bench.build(pre_run=(half,), run=(half,), timeout_s=5)).result == "TIMED_OUT"


async def test_files_that_cannot_be_run_are_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.source / "text").write_text("just text\n")
    (bench.source / "strange").write_text("#!/nowhere/at/all\n")
    (bench.source / "strange").chmod(0o755)
    (bench.source / "windows").write_bytes(b"#!/bin/sh\r\necho ran\r\n")
    (bench.source / "windows").chmod(0o755)
    (bench.source / "outside").symlink_to("/bin/true")
    for name, why in {
        "nothing": "has no file nothing",
        "text": "neither a playbook (.yaml) nor an executable",
        "windows": "has the line ends of Windows",
        "strange": "cannot be started: No such file or directory",
        "outside": "has no file outside",
    }.items():
        outcome = await bench.build(run=(Playbook(PROJECT, "local", "master", name),))
        assert outcome.result == "ERROR" and why in outcome.error


async def test_a_script_without_the_executable_bit_runs_with_the_interpreter_of_its_first_line(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    book = bench.script("plain", "echo ran")
    (bench.source / "plain").chmod(0o644)
    assert (await bench.build(run=(book,))).result == "SUCCESS" and "| ran" in bench.log


async def test_a_failed_checkout_is_tried_again_unless_it_is_a_conflict(tmp_path: Path) -> None:
    class Broken:
        def __init__(self, *, conflict: bool) -> None:
            self.conflict = conflict

        async def branches(self, *_: object) -> tuple[str, ...]:
            return ("master",)

        async def checkout(self, *_: object, **__: object) -> str:
            raise CheckoutError("api is not there", conflict=self.conflict)

    bench = Bench(tmp_path)
    bench.runner._checkout = Broken(conflict=False)
    assert (await bench.build()).result is None, "the network may be back next time"
    assert (await bench.build(attempt=3)).result == "RETRY_LIMIT"
    bench.runner._checkout = Broken(conflict=True)
    outcome = await bench.build()
    assert outcome.result == "MERGE_CONFLICT" and "api is not there" in bench.log


async def test_a_job_may_rule_out_further_attempts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    pre = bench.script("pre", "headgate-return zuul.retry=false; exit 1")
    assert (await bench.build(pre_run=(pre,))).result == "FAILURE"


async def test_an_executable_gets_its_variables_by_file_and_environment(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap", hostname="here", variables={"mirror": "http://site", "who": "site"})
    run = bench.script("run", "cp $HEADGATE_VARS $ZUUL_LOG_DIR/vars.json; env > $ZUUL_LOG_DIR/env.txt; pwd")
    post = bench.script("post", "cp $HEADGATE_VARS $ZUUL_LOG_DIR/post.json; false")
    outcome = await bench.build(
        run=(run,), post_run=(post,), vars={"who": "job", "n": 3}, extra_vars={"x": 1}, spec={"parent_data": {"p": 2}}
    )
    logged = bench.log_json("vars.json")
    zuul = logged["zuul"]
    assert {name: logged[name] for name in ("who", "n", "x", "p", "mirror")} == {
        "who": "site", "n": 3, "x": 1, "p": 2, "mirror": "http://site"
    }  # fmt: skip
    assert zuul["project"]["src_dir"] == f"src/{PROJECT}" and zuul["projects"][PROJECT]["commit"] == "1" * 40
    assert zuul["executor"]["hostname"] == "here" and zuul["executor"]["src_root"] == str(bench.work / "src")
    (ran,) = zuul["playbook_context"]["playbooks"]
    assert ran == {"path": f"{PROJECT}/run", "branch": "master", "trusted": False, "roles": []}
    assert base64.b64decode(zuul["message"]) == b"" and [i["ref"] for i in zuul["items"]] == ["refs/for/master/topic"]
    assert logged["zuul_execution_phase"] == "run" and "zuul_success" not in logged
    assert bench.log_json("post.json")["zuul_success"] == "True" and outcome.result == "POST_FAILURE"
    environment = dict(
        line.split("=", 1) for line in (Path(outcome.log_path) / "env.txt").read_text().splitlines() if "=" in line
    )
    assert environment["ZUUL_PROJECT"] == PROJECT and environment["ZUUL_CHANGE"] == "topic"
    assert environment["ZUUL_EXECUTION_PHASE"] == "run" and environment["HOME"].startswith(
        f"{bench.work.parent}/contexts/"
    )
    assert f"| {bench.work}/src/{PROJECT}" in bench.log, "it starts in the repository of the change"


async def test_nothing_of_the_executors_environment_reaches_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_SECRET", "treasure")
    bench = Bench(tmp_path)
    assert (await bench.build(run=(bench.script("run", "env"),))).result == "SUCCESS"
    assert "treasure" not in bench.log


async def test_data_is_returned_in_pieces(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.script(
        "first",
        """headgate-return zuul.log_url=http://l/ deep.a=1 zuul.artifacts='[{"name": "doc", "url": "doc/"}]'
echo '{"zuul": {"artifacts": [{"name": "tar", "url": "t.tgz"}]}, "deep": {"b": [2]}}' | headgate-return --json -""",
    )
    second = bench.script("second", "headgate-return deep.a=3 zuul.warnings='[\"old API\"]'")
    outcome = await bench.build(run=(first,), post_run=(second,))
    assert outcome.data["deep"] == {"a": 3, "b": [2]} and outcome.data["zuul"]["log_url"] == "http://l/"
    assert [a["name"] for a in outcome.data["zuul"]["artifacts"]] == ["doc", "tar"]
    assert outcome.data["zuul"]["warnings"] == ["old API"]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo '{broken' > $HEADGATE_RESULT", "is not JSON"),
        ("echo '[1]' > $HEADGATE_RESULT", "is not an object with `data`"),
        ("ln -s /etc/hostname $HEADGATE_RESULT", "cannot be read"),
        ("mkfifo $HEADGATE_RESULT", "is a FIFO, not a regular file"),
        ("head -c 70000000 /dev/zero | tr '\\0' x > $HEADGATE_RESULT", "it exceeds the limit of"),
    ],
    ids=["broken", "list", "link", "pipe", "huge"],
)
async def test_data_that_cannot_be_used_fails_the_build(tmp_path: Path, does: str, why: str) -> None:
    bench = Bench(tmp_path)
    outcome = await bench.build(run=(bench.script("run", does),))
    assert (
        outcome.result == "FAILURE" and why in outcome.error and "The data that the job returned is lost" in bench.log
    )


async def test_files_left_in_the_log_directory_are_stored_within_limits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, files_size_max_bytes=1000)
    does = """cd $ZUUL_LOG_DIR; mkdir sub; echo '{"a": 1}' > sub/report.json; head -c 2000 /dev/zero > big
ln -s /etc/passwd stolen; mkfifo pipe; echo mine > job-output.txt.1
mkdir zuul-info; echo '"mine"' > zuul-info/inventory.yaml"""
    outcome = await bench.build(run=(bench.script("run", does),))
    assert outcome.result == "SUCCESS" and bench.log_json("sub/report.json") == {"a": 1}
    assert bench.log_json("zuul-info/inventory.yaml") == "mine", "as what base jobs write there"
    stored = {str(p.relative_to(outcome.log_path)) for p in Path(outcome.log_path).rglob("*") if not p.is_dir()}
    ours = {"job-output.txt", "job-output.json", "zuul-info/inventory.yaml", "zuul-manifest.json"}
    assert stored == {"job-output.txt.1", "sub/report.json", *ours}
    for line in ("stolen is not stored: it is a symbolic link", "big is not stored: its 2000 bytes"):
        assert line in bench.log


async def test_the_stored_inventory_contains_no_site_variables_and_no_secrets(tmp_path: Path) -> None:
    bench = Bench(tmp_path, variables={"mirror_password": "hunter2", "who": "site"})
    run = bench.script("run", """headgate-return 'zuul.redactions=["hunter3"]'""")
    outcome = await bench.build(run=(run,), vars={"who": "job", "said": ["a hunter3"]})
    assert outcome.result == "SUCCESS"
    variables = bench.log_json("zuul-info/inventory.yaml")["all"]["vars"]
    assert variables["said"] == ["a [redacted]"] and {"who", "mirror_password"}.isdisjoint(variables)
    assert variables["zuul"]["playbook_context"], "the rest is there"


async def test_builds_side_by_side_do_not_meet(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    listing = bench.script("run", "ls ../../../../.. ; ls /tmp; touch /tmp/mine")
    others = [bench.start(run=(listing,)) for _ in range(3)]
    ids = {path.name for path in (tmp_path / "builds").iterdir()} if (tmp_path / "builds").exists() else set()
    assert [(await other).result for other in others] == ["SUCCESS"] * 3
    assert bench.log.count("| mine") == 0 and not [id for id in ids - {bench.id} if f"| {id}" in bench.log]


async def test_work_is_shared_out_while_many_builds_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    quick = bench.script("run", "echo done")
    results = await asyncio.gather(*(bench.start(run=(quick,)) for _ in range(12)))
    assert {outcome.result for outcome in results} == {"SUCCESS"}


async def test_a_job_that_asks_for_it_is_paused_between_run_and_post(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    pauses, go_on = asyncio.Queue[dict[str, Any]](), asyncio.Event()

    async def pause(data: dict[str, Any]) -> None:
        await pauses.put(data)
        await go_on.wait()

    run = bench.script("run", f"{SAYS}; headgate-return zuul.pause=true port=8080")
    building = bench.start(run=(run,), post_run=(bench.script("post", SAYS),), contact=Alone(pause))
    assert await pauses.get() == {"zuul": {"pause": True}, "port": 8080}
    assert printed_words(bench) == ["run"] and "PAUSED" in bench.log
    go_on.set()
    assert (await building).result == "SUCCESS" and printed_words(bench) == ["run", "post"]


async def test_a_paused_build_can_be_cancelled(tmp_path: Path) -> None:
    bench, cancel = Bench(tmp_path), asyncio.Event()

    async def pause(data: dict[str, Any]) -> None:
        cancel.set()
        await asyncio.Event().wait()

    run = bench.script("run", "headgate-return zuul.pause=true")
    books = (bench.script("post", SAYS), replace(bench.script("tidy", SAYS), cleanup=True))
    outcome = await bench.build(cancel=cancel, run=(run,), post_run=books, contact=Alone(pause))
    assert outcome.result == "CANCELED" and printed_words(bench) == ["tidy"]


async def test_all_cleanup_playbooks_after_a_cancellation_share_one_time_limit(tmp_path: Path) -> None:
    bench, cancel = Bench(tmp_path, limits=PhaseLimits(post_timeout_s=1)), asyncio.Event()
    run = bench.script("run", f"{SAYS}; sleep 600")
    endless = [replace(bench.script(f"tidy-{n}", f"{SAYS}; sleep 600"), cleanup=True) for n in range(30)]
    building = bench.start(run=(run,), post_run=tuple(endless), post_timeout_s=10_000, cancel=cancel)
    await until(
        "the build runs", lambda: (bench.source.parent / "logs" / bench.id).is_dir() and printed_words(bench) == ["run"]
    )
    cancel.set()
    async with asyncio.timeout(DEADLINE_S):
        assert (await building).result == "CANCELED"
    assert printed_words(bench) == ["run", "tidy-0"] and "skipped: tidy-1, tidy-2" in bench.log


@pytest.mark.parametrize(
    ("scheme", "place"), [("golang", "h/code/app"), ("flat", "app"), ("unique", "h/code/code%2Fapp")]
)
async def test_projects_are_checked_out_where_the_scheme_says(tmp_path: Path, scheme: str, place: str) -> None:
    bench = Bench(tmp_path)
    text = f'cp $HEADGATE_VARS $ZUUL_LOG_DIR/vars.json; cat "$ZUUL_SRC_ROOT/{place}/README"'
    more = RequiredProject("h/code/app", "local")
    outcome = await bench.build(run=(bench.script("job", text),), workspace_scheme=scheme, required_projects=(more,))
    assert outcome.result == "SUCCESS", bench.log
    zuul = bench.log_json("vars.json")["zuul"]
    assert zuul["projects"]["h/code/app"]["src_dir"] == f"src/{place}"
    assert zuul["project"]["src_dir"] == zuul["projects"][PROJECT]["src_dir"]


async def test_two_projects_in_one_place_are_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    more = (RequiredProject("h/one/app", "local"), RequiredProject("h/two/app", "local"))
    outcome = await bench.build(run=(bench.script("job", "true"),), workspace_scheme="flat", required_projects=more)
    assert outcome.result == "ERROR"
    assert "with workspace-scheme flat both h/one/app and h/two/app would be in src/app" in outcome.error


async def test_a_playbook_runs_while_it_holds_its_semaphores(tmp_path: Path) -> None:
    bench, contact = Bench(tmp_path), Alone()
    seen: list[list[str]] = []

    async def pause(data: dict[str, Any]) -> None:
        seen.append(list(contact.held))

    contact._pause = pause
    run = replace(bench.script("run", f"{SAYS}; headgate-return zuul.pause=true"), semaphores=("printer", "lab"))
    outcome = await bench.build(run=(run,), contact=contact)
    assert (
        outcome.result == "SUCCESS"
        and printed_words(bench) == ["run"]
        and "WAITING for semaphores: printer, lab" in bench.log
    )
    assert seen == [[]], "they were given back when it had ended"


@pytest.mark.long
async def test_waiting_for_a_semaphore_is_part_of_the_time(tmp_path: Path) -> None:
    bench, cancel = Bench(tmp_path), asyncio.Event()
    run = replace(bench.script("run", SAYS), semaphores=("printer",))
    outcome = await bench.build(run=(run,), timeout_s=3, contact=Alone(busy=True))
    assert (
        outcome.result == "TIMED_OUT" and "while it waited for printer" in outcome.error and printed_words(bench) == []
    )
    building = bench.start(cancel, run=(run,), contact=Alone(busy=True))
    await bench.says("WAITING")
    cancel.set()
    assert (await building).result == "CANCELED"


async def test_a_failure_comes_with_the_lines_that_say_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bad = bench.script("bad", "echo fine; echo 'x.c:3: error: it is wrong' >&2; exit 1")
    after = bench.script("after", "echo 'ERROR: of what comes after'")
    outcome = await bench.build(run=(bad,), post_run=(after,))
    assert outcome.excerpt == "x.c:3: error: it is wrong"
    good = bench.script("good", "echo 'ERROR: that somebody copes with'")
    assert (await bench.build(run=(good,))).excerpt == ""
