"""Test builds and buildsets in the API: filters, paging, logs, running ones."""

from __future__ import annotations

import re
import time
from datetime import datetime
from urllib.parse import urljoin
from xml.etree import ElementTree

import pytest

from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState

from .conftest import TENANT, World


@pytest.mark.long
async def test_running_builds_are_listed_before_ended_ones(world: World) -> None:
    done = await world.landed("done")
    busy = await world.under_way("busy")
    found = await world.get("T/builds")
    assert found[0]["uuid"] == busy["uuid"] and found[0]["result"] is None and not found[0]["final"]
    assert found[0]["ref"]["change"] == "busy" and found[0]["pipeline"] == "check"
    assert done["uuid"] in [one["uuid"] for one in found[1:]]
    ids = [one["_id"] for one in found]
    assert len(set(ids)) == len(ids) and all(isinstance(one, int) for one in ids)
    ended = await world.get("T/builds?complete=true")
    assert busy["uuid"] not in [one["uuid"] for one in ended] and done["uuid"] in [one["uuid"] for one in ended]
    assert [one["uuid"] for one in await world.get("T/builds?complete=false")] == [busy["uuid"]]
    without = await world.get("T/builds?exclude_result=SKIPPED")
    assert busy["uuid"] not in [one["uuid"] for one in without], "what has no result is left out, too"
    assert await world.get("T/builds?result=FAILURE") == []
    paged = [(await world.get(f"T/builds?limit=1&skip={n}"))[0]["uuid"] for n in range(len(found))]
    assert paged == [one["uuid"] for one in found]
    sets = await world.get("T/buildsets")
    assert sets[0]["result"] is None and sets[0]["refs"][0]["change"] == "busy" and "builds" not in sets[0]
    assert sets[0]["first_build_start_time"] == found[0]["start_time"] is not None
    answer = await world.get(f"T/buildset/{sets[0]['uuid']}")
    assert [one["uuid"] for one in answer["builds"]] == [busy["uuid"]]
    assert [one["event_type"] for one in answer["events"]] == ["triggered"]


@pytest.mark.long
async def test_a_star_in_a_filter_matches_any_text_and_filters_may_repeat(world: World) -> None:
    await world.landed("done")

    async def count(query: str) -> int:
        return len(await world.get(f"T/builds?complete=true&{query}"))

    every = await count("")
    assert every >= 2
    for query in (
        "job_name=*i*", "job_name=*", "job_name=un*&job_name=lint*", "pipeline=gate&pipeline=check", "pipeline=*",
            "project=code/*",
        "project=*/api", "project=git.example/code/*", "branch=mas*", "branch=m*s*r",
    ):  # fmt: skip
        assert await count(query) == every, query
    for query in ("job_name=un*", "job_name=*it", "job_name=u*i*t"):
        assert await count(query) == await count("job_name=unit") == 2, query
    for query in ("job_name=UN*", "job_name=u_it", "job_name=u%25", "branch=*x", "project=other/*", "change=*"):
        assert await count(query) == 0, query
    assert (await world.client.get(f"{TENANT}/builds?job_name=a*b*c*d*e")).status_code == 400
    for wrong in ("job_name=unit", "voting=1", "held=1", "nodeset=two", "reslut=FAILURE"):
        refused = await world.client.get(f"{TENANT}/buildsets?{wrong}")
        assert refused.status_code == 400 and wrong.partition("=")[0] in refused.json()["description"], wrong


@pytest.mark.long
async def test_rows_are_counted_and_bounded_by_their_numbers(world: World) -> None:
    for topic in ("one", "two"):
        await world.landed(topic)
    for kind in ("builds", "buildsets"):
        found = await world.get(f"T/{kind}?complete=true")
        ids = sorted(one["_id"] for one in found)
        inner = {one["_id"] for one in await world.get(f"T/{kind}?idx_min={ids[1]}&idx_max={ids[-2]}")}
        assert inner == set(ids[1:-1]), "both bounds are included"
        assert (await world.client.get(f"{TENANT}/{kind}?idx_min=x")).status_code == 400


@pytest.mark.long
async def test_a_build_that_ran_has_a_log_and_a_list_of_its_files(world: World) -> None:
    def leaves(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        place = world.logs / spec.build
        (place / "docs/deep").mkdir(parents=True)
        (place / "job-output.txt").write_text("hello\n")
        (place / "docs/deep/<a>.json").write_text("{}")
        (place / "data:text").write_text("x")
        return ran(spec, state)

    world.running.runner.jobs = {"unit": leaves}
    build = await world.get(f"T/build/{(await world.landed('done'))['uuid']}")
    url = build["log_url"]
    assert url.startswith("http://headgate.example/") and url.endswith("/")
    (listed,) = [one for one in build["artifacts"] if one.get("metadata", {}).get("type") == "zuul_manifest"]
    tree = (await world.client.get(listed["url"])).json()["tree"]
    assert {one["name"] for one in tree} == {"docs", "job-output.txt", "data:text"}
    (docs,) = [one for one in tree if one["name"] == "docs"]
    assert [one["name"] for one in docs["children"][0]["children"]] == ["<a>.json"]
    assert all(one["mimetype"] for one in tree)
    text = await world.client.get(f"{url}job-output.txt")
    assert text.text == "hello\n" and text.headers["access-control-allow-origin"] == "*"
    pages = {at: (await world.client.get(at)).text for at in (url, url.rstrip("/"))}
    assert all("<a>.json" not in page and "&lt;a&gt;.json" in page for page in pages.values())
    assert 'href="job-output.txt"' in pages[url], "programs put the name behind the address"
    for at, page in pages.items():
        links = {urljoin(at, found) for found in re.findall('href="([^"]+)"', page)}
        assert len(links) == 3 and all(link.startswith(url) for link in links), links
        assert {(await world.client.get(link)).status_code for link in links} == {200}


def ran(spec: BuildSpec, state: RepoState) -> BuildOutcome:
    now_ms = int(time.time() * 1000)
    return BuildOutcome(build=spec.build, result="SUCCESS", start_ms=now_ms - 1_000, end_ms=now_ms)


async def test_times_are_flat_and_bounded_by_when_builds_ended(world: World) -> None:
    world.running.runner.jobs = {"unit": ran}
    build = await world.landed("done")
    (one,) = await world.get("T/build-times?pipeline=gate&project=code/api&job_name=unit&branch=master")
    assert (one["uuid"], one["project"], one["branch"]) == (build["uuid"], "git.example/code/api", "master")
    assert isinstance(one["ref"], str)
    later = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 60))
    assert await world.get(f"T/build-times?start_time={later}") == []
    assert await world.get(f"T/build-times?pipeline=gate&job_name=unit&end_time={later}") == [one]
    for wrong in ("start_time=yesterday", "patchset=1", "limit=x"):
        assert (await world.client.get(f"{TENANT}/build-times?{wrong}")).status_code == 400


async def test_refs_of_changes_and_of_branches_are_distinguished(world: World) -> None:
    build = await world.landed("done")
    ref = (await world.get(f"T/build/{build['uuid']}"))["ref"]
    assert (ref["change"], ref["newrev"]) == ("done", None) and len(ref["patchset"]) == 40


async def test_system_events_list_configuration_changes(world: World) -> None:
    found = await world.get("T/system-events")
    assert found and {one["event_type"] for one in found} == {"tenant reconfiguration"}
    assert await world.get("T/system-events?event_type=other") == []
    at = found[0]["_id"]
    for query, count in ((f"idx_max={at}", len(found)), (f"idx_min={at}", 1), (f"idx_min={at + 1}", 0), ("skip=9", 0)):
        assert len(await world.get(f"T/system-events?{query}")) == count, query
    for wrong in ("idx_min=x", "limit=-1", "project=code/api"):
        assert (await world.client.get(f"{TENANT}/system-events?{wrong}")).status_code == 400, wrong


async def test_a_badge_is_also_where_its_address_lacks_the_api(world: World) -> None:
    await world.landed("done")
    for path in (f"{TENANT}/badge?project=code/api", "/tenant/example/badge?project=code/*&pipeline=gate"):
        answer = await world.client.get(path)
        assert "gate: passing" in answer.text and answer.headers["content-type"].startswith("image/svg+xml")
        assert answer.headers["cache-control"] == "no-cache"
    assert (await world.client.get(f"{TENANT}/badge?project=code/lib")).status_code == 404


@pytest.mark.long
async def test_the_feed_of_ended_buildsets_is_valid_atom(world: World) -> None:
    await world.landed("done")
    await world.landed("odd<b>")
    answer = await world.client.get("/t/example/feed.atom?project=code/api")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("application/atom+xml")
    feed = ElementTree.fromstring(answer.text)
    entries = feed.findall("{*}entry")
    titles = [entry.findtext("{*}title") for entry in entries]
    assert "SUCCESS gate: code/api done" in titles and "SUCCESS gate: code/api odd<b>" in titles
    for part in (feed, *entries):
        assert part.findtext("{*}id") and datetime.fromisoformat(part.findtext("{*}updated") or "").tzinfo is not None
    (link,) = (entry.find("{*}link") for entry in entries[:1])
    assert link is not None and "/t/example/buildset/" in link.attrib["href"]
    assert len(entries) == len(await world.get("T/buildsets?project=code/api&complete=true&final=true"))
    assert (await world.client.get("/t/example/feed.atom?nothing=1")).status_code == 400
    assert (await world.client.get("/t/none/feed.atom")).status_code == 404
