"""Test jobs on machines that a cluster makes: from labels to real containers, without any remains."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.repositories import Repositories
from headgate.testing.servers.images import archive, shell
from headgate.testing.servers.kubernetes.containers import MISSING, ContainerEngine
from headgate.testing.servers.kubernetes.server import FakeKubernetesServer, kubernetes
from tests.integration.conftest import PIPELINES, TENANTS
from tests.integration.kubernetes.test_kubectl import KUBECTL
from tests.waiting import wait_for

from .headgate import SETTINGS, Headgate

pytestmark = [
    pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl is not installed: it is of requirements/dev.txt"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"), reason=MISSING),
]
MACHINES = """
- image: {name: any, type: cloud}
- flavor: {name: small}
- label: {name: pod, image: any, flavor: small}
- label: {name: never, image: any, flavor: small}
- label: {name: space, image: any, flavor: small}
- section:
    name: builds
    connection: cluster
    images: [{name: any}]
    flavors: [{name: small}]
- provider:
    name: builds
    section: builds
    launch-attempts: 1
    labels:
      - name: pod
        image: any
        flavor: small
        kind: pod
        spec: {containers: [{name: main, image: "machine:1", command: [sleep, "1000"]}]}
      - name: never
        image: any
        flavor: small
        kind: pod
        spec: {containers: [{name: main, image: "machine:2", command: [sleep, "1000"]}]}
      - {name: space, image: any, flavor: small, kind: namespace}
- job:
    name: never
    run: jobs/unit
    nodeset: {nodes: [{name: machine, label: never}]}
- job:
    name: unit
    run: jobs/unit
    nodeset: {nodes: [{name: machine, label: pod}, {name: space, label: space}]}
"""
UNIT = f"""#!/bin/sh
set -e
for context in $({KUBECTL} config get-contexts -o name); do
    for pod in $({KUBECTL} --context $context get pods -o name); do
        echo "its first process is $({KUBECTL} --context $context exec $pod -- cat /proc/1/cmdline | tr '\\0' ' ')"
    done
    echo "may make pods: $({KUBECTL} --context $context get secrets -o name 2>&1 | cut -c 1-30)"
done
"""


@contextmanager
def beside(place: Path, engine: ContainerEngine) -> Iterator[FakeKubernetesServer]:
    """Serve a cluster from a separate thread, because the test waits for processes."""
    loop, found = asyncio.new_event_loop(), dict[str, Any]()
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with kubernetes(place, engine) as server:
            found["server"] = server
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield found["server"]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetesServer]:
    engine = ContainerEngine()
    try:
        engine.load("machine:1", archive(shell()))
        with beside(tmp_path / "cluster", engine) as found:
            yield found
    finally:
        engine.close()


@pytest.fixture
def headgate(tmp_path: Path, cluster: FakeKubernetesServer) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    unit = re.compile(r"- job:\n    name: unit\n    run: jobs/unit\n")
    text = unit.sub("", PIPELINES).replace("- job:\n    name: base", f"{MACHINES}\n- job:\n    name: base")
    text = text.replace("check:\n      jobs: [unit]", "check:\n      jobs: [unit, never]")
    repositories.create("config", {"zuul.yaml": text, "jobs/unit": UNIT})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    connection = f"[connection cluster]\ndriver = kubernetes\nrate = 0\nkubeconfig_file = {cluster.kubeconfig()}\n"
    include = "include: [pipeline, job, project, image, flavor, label, section, provider]"
    tenants = TENANTS.replace("          - config\n", f"          - config: {{{include}}}\n")
    running = Headgate(repositories, tenants, settings=SETTINGS + connection + "[keystore]\npassword = of-the-test\n")
    running.start()
    yield running
    running.stop()


@pytest.mark.long
def test_jobs_get_pods_and_namespaces_or_the_reason_why_not(headgate: Headgate, cluster: FakeKubernetesServer) -> None:
    headgate.repositories.propose("code/api", "greet", {"hello": "hi\n"})

    def ended(job: str) -> dict[str, Any]:
        builds = headgate.get(f"/api/tenant/example/builds?complete=true&job_name={job}")
        return builds[0] if builds and builds[0]["result"] else {}

    never, unit = (wait_for(f"{job} ends", lambda job=job: ended(job)) for job in ("never", "unit"))
    assert unit["result"] == "SUCCESS", unit["error_detail"]
    log = (headgate.root / "state" / "logs" / unit["uuid"] / "job-output.txt").read_text()
    assert unit["result"] == "SUCCESS", log
    assert "its first process is sleep 1000" in log
    assert "may make pods: secret/zuul-worker" in log and "may make pods: Error from server" in log, log
    assert never["result"] == "NODE_FAILURE"
    assert "ImagePull" in never["error_detail"] and 'pulling image "machine:2"' in never["error_detail"], never

    spaces = cluster.cluster.things
    wait_for("nothing is left in the cluster", lambda: not [key for key in list(spaces) if key[0] == "namespaces"])
    assert cluster.engine is not None and cluster.engine.living() == []
    store = (headgate.root / "state" / "headgate.sqlite").read_bytes()
    assert b'"token"' not in store and cluster.cluster.admin.encode() not in store
