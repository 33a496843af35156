"""Names to paths and back; records to bytes and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.state.change import Change
from headgate.map.forms import ITEM, PIPELINE, QUEUE
from headgate.map.places import Map
from headgate.map.tree import Undecodable, escape, locate, render, unescape

NAMES = st.text(st.characters(exclude_categories=("Cs",)))


def found(path, root="/zuul"):
    where = locate(Map, root, path)
    assert where is not None, path
    return where


@given(NAMES)
def test_any_name_is_one_component_and_comes_back(name):
    component = escape(name)
    assert unescape(component) == name
    assert component not in ("", ".", "..") and "/" not in component


@pytest.mark.parametrize(
    ("name", "component"),
    [("a-b_c.D9", "a-b_c.D9"), ("a/b", "a%2Fb"), ("~", "%7E"), (".", "%2E"), ("..", "%2E%2E"), ("", "%"), ("%", "%25")],
)
def test_names_are_escaped_in_paths(name, component):
    assert escape(name) == component


@given(tenant=NAMES, pipeline=NAMES, item=NAMES, job=NAMES)
def test_a_place_is_found_by_its_path(tenant, pipeline, item, job):
    place = Map().tenant(tenant).pipeline(pipeline).item(item).buildset("b").job(job).record
    where = found(place.path)
    assert where.place.type is place.type and where.rest == ""
    assert where.keys == {
        "tenant": tenant, "pipeline": pipeline, "item uuid": item, "buildset uuid": "b", "job name": job
    }  # fmt: skip


def test_every_declared_place_is_found_by_its_template():
    for row in render(Map, "/zuul"):
        path = "/".join(escape(name) for name in row.template.split("/")).replace("%/", "/").removeprefix("%")
        where = found(path if path.startswith("/") else f"/{path}")
        assert (where.template, where.place) == (row.template, row.place)


def test_a_directory_may_have_a_value_of_its_own():
    pipeline = Map().tenant("acme").pipeline("gate")
    assert pipeline.record.path == "/zuul/tenant/acme/pipeline/gate" == pipeline.path
    assert found(pipeline.record.path).place.type is PIPELINE.type
    assert found(pipeline.queue("q").record.path).place.type is QUEUE.type


@pytest.mark.parametrize(
    "path",
    ["/zuul/cleanup/semaphores", "/zuulx", "/elsewhere", "/zuul/ltime/below", "/zuul/tenant/a%2fb/pipeline/gate"],
)
def test_paths_outside_the_map_are_not_located(path):
    assert locate(Map, "/zuul", path) is None


def test_the_root_is_a_matter_of_choice():
    path = Map("/other/root").layout("acme").record.path
    assert path == "/other/root/layout/acme"
    assert found(path, "/other/root").keys == {"tenant": "acme"}
    assert locate(Map, "/zuul", path) is None


@pytest.mark.parametrize("files", [0, 1000])
def test_records_come_back_small_or_large(files):
    record = ITEM.type(change=Change("git", "host/p", "main", files=tuple(f"dir/{n}" for n in range(files))))
    place = Map().tenant("acme").pipeline("gate").item("i").record
    value = place.encode(record)
    assert place.decode(value) == record
    assert value.startswith(b"{") == (files == 0)


def test_an_unreadable_record_is_reported_with_its_path():
    place = Map().tenant("acme").pipeline("gate").record
    with pytest.raises(Undecodable, match=r"^/zuul/tenant/acme/pipeline/gate: cannot be read") as error:
        place.decode(b'{"queues": 7}')
    assert error.value.path == place.path
    with pytest.raises(Undecodable):
        place.decode(b"\x28\xb5\x2f\xfdcut")


def test_request_places_are_below_their_queue():
    places = Map().executor.zones("east").places
    assert places.params == "/zuul/executor/zones/east/params"
    assert places.result_data == "/zuul/executor/zones/east/result-data"
