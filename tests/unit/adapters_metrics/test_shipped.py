"""Test that the shipped files for Prometheus and Grafana use only existing metrics and labels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parsed

from headgate.adapters.metrics.figures import OUTCOMES, RECEIVERS, REQUESTS, ProcessMetrics
from headgate.map.places import Map
from headgate.queue.server.answers import MessageMetrics
from headgate.recipes.mirror import Mirror
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

SHIPPED = Path(__file__).parents[3] / "packaging/prometheus"
NAME = re.compile(r"\b(?:headgate|process)_[a-z_]+")
ENDS = ("_bucket", "_count", "_sum", "_total")


def fresh() -> tuple[dict[str, float], set[str]]:
    """Return the series of a process that has done nothing yet, and the names of all its metrics."""
    figures, map = ProcessMetrics(), Map()
    with figures.showing_system(map, Mirror(Store(MemoryBackend()), map.path)):
        families = list(parsed(figures.text().decode()))
    series = {f"{one.name}{sorted(one.labels.items())}": one.value for family in families for one in family.samples}
    names = {family.name + end for family in families for end in ("", *ENDS)}
    return series, names


def rules() -> list[str]:
    return re.findall(r"expr: (.*)", (SHIPPED / "headgate.rules.yml").read_text())


def queries() -> list[str]:
    panels = json.loads((SHIPPED / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.heavy
@pytest.mark.parametrize("expression", [*rules(), *queries()])
def test_every_query_names_figures_that_exist(expression: str) -> None:
    names = set(NAME.findall(expression))
    assert names or expression.startswith("up{")
    assert names <= fresh()[1]


def test_series_whose_labels_are_known_begin_at_zero() -> None:
    series, _ = fresh()
    for request, outcome in product(REQUESTS, OUTCOMES):
        labels = [("outcome", outcome), ("request", request)]
        assert series[f"headgate_store_request_seconds_count{labels}"] == 0
    for to in RECEIVERS:
        assert series[f"headgate_messages_dropped_total{[('to', to)]}"] == 0
    for kind, state in product(("build", "git"), ("requested", "running", "waiting", "paused")):
        assert series[f"headgate_requests{[('kind', kind), ('state', state), ('zone', '')]}"] == 0
    for kind in ("scheduler", "merger", "executor", "web"):
        labels = [("accepting", "true"), ("kind", kind), ("state", "running")]
        assert series[f"headgate_components{labels}"] == 0
    assert series["headgate_history_queue_length[]"] == 0


def test_former_names_have_the_values_of_the_new_ones() -> None:
    """The page about upgrades lists them; take them out with the release that ends them."""
    figures, server = ProcessMetrics(), MessageMetrics()
    figures.dropped("reports", 3)
    server.waiting.inc(2)
    lines = figures.text().decode().splitlines()
    lines += generate_latest(server.registry).decode().splitlines()
    for name in ("headgate_messages_dropped_total", "headgate_messages_untold_total"):
        assert f'{name}{{to="reports"}} 3.0' in lines and f"# TYPE {name} counter" in lines
    for name in ("headgate_queue_requests_waiting", "headgate_messages_waiting"):
        assert f"{name} 2.0" in lines and f"# TYPE {name} gauge" in lines


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed here")
def test_alerts_fire_when_they_should_and_only_then() -> None:
    command = ["promtool", "test", "rules", "headgate.tests.yml"]
    done = subprocess.run(command, cwd=SHIPPED, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = re.findall(r"alert: (\w+)", (SHIPPED / "headgate.rules.yml").read_text())
    tested = (SHIPPED / "headgate.tests.yml").read_text()
    assert len(alerts) > 8 and all(f"name: {one} {does}" in tested for one in alerts for does in ("fires", "is silent"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed here")
def test_prometheus_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    token = tmp_path / "headgate.token"
    token.write_text("T")
    text = (SHIPPED / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/headgate.token", str(token)))
    shutil.copy(SHIPPED / "headgate.rules.yml", tmp_path)
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
