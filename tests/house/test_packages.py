"""Test that the shipped packages name existing files and commands.

`make packages` builds them, and helm, which then also renders the chart here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate import __version__
from headgate.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
CONTAINER, CHART = ROOT / "packaging/container", ROOT / "packaging/helm/headgate"
BUILT = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headgate"
HELM = shutil.which("helm") or shutil.which("helm", path=BUILT)
KINDS = {"scheduler", "merger", "launcher", "executor", "web"}


def test_the_image_copies_existing_files_that_no_ignore_file_excludes() -> None:
    text = (CONTAINER / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    included = set(re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE))
    assert copied and all((ROOT / path).exists() and path.split("/")[0] in included for path in copied)


def test_compose_files_run_commands_that_there_are_and_name_volumes_that_they_declare() -> None:
    kinds = []
    for file in sorted(CONTAINER.glob("compose*.yaml")):
        compose = yaml.safe_load(file.read_text())
        for service in compose["services"].values():
            named = {volume.partition(":")[0] for volume in service.get("volumes", ()) if not volume.startswith(".")}
            assert named <= set(compose["volumes"]), file
            if service["image"] == "headgate" and "command" in service:
                kinds.append(service["command"].split()[0])
    assert set(kinds) == KINDS <= set(COMMANDS)


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())["replicas"]) == KINDS


def _rendered(*settings: str) -> list[dict[str, Any]]:
    """Return the objects that a real helm renders from the chart with `settings`."""
    if HELM is None:
        pytest.skip("no helm: `make chart` builds one where Go is installed")
    words = [
        HELM,
        "template",
        "ours",
        str(CHART),
        *(word for one in ("tenants=x", *settings) for word in ("--set", one)),
    ]
    return list(yaml.safe_load_all(subprocess.run(words, capture_output=True, text=True, check=True).stdout))


def _pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pod of each kind of process."""
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("Deployment", "StatefulSet")]
    return {pod["containers"][0]["args"][0]: pod for pod in pods}


@pytest.mark.parametrize("fleet", [False, True])
def test_the_chart_is_rendered_as_objects_of_each_kind(fleet: bool) -> None:
    assert set(_pods(_rendered(f"fleet={str(fleet).lower()}"))) == (KINDS if fleet else {"run"})


def test_only_pods_that_run_jobs_have_an_unmasked_proc_and_a_user_namespace_with_it() -> None:
    """Kubernetes refuses a pod that has only one of both."""
    for fleet in ("true", "false"):
        for kind, pod in _pods(_rendered(f"fleet={fleet}")).items():
            unmasked = pod["containers"][0]["securityContext"].get("procMount") == "Unmasked"
            assert unmasked == (kind in ("run", "executor")) == (pod.get("hostUsers") is False)
    pods = _pods(_rendered("fleet=true", "sandbox=false")).values()
    assert all("procMount" not in pod["containers"][0]["securityContext"] and "hostUsers" not in pod for pod in pods)


@pytest.mark.parametrize("name", ["build", "postinst", "prerm", "try"])
def test_scripts_of_the_debian_package_are_shell(name: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / "packaging/debian" / name)], check=True)
