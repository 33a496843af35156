"""Check that what is shipped to run Headgate elsewhere names files and commands that exist.

`make packages` builds it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from headgate import __version__
from headgate.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
CONTAINER, CHART = ROOT / "packaging/container", ROOT / "packaging/helm/headgate"
KINDS = {"scheduler", "merger", "launcher", "executor", "web"}


def test_the_image_copies_files_that_are_there_and_that_no_ignore_file_keeps_out() -> None:
    text = (CONTAINER / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    kept = set(re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE))
    assert copied and all((ROOT / path).exists() and path.split("/")[0] in kept for path in copied)


def test_compose_files_run_commands_that_there_are_and_name_volumes_that_they_declare() -> None:
    kinds = []
    for file in sorted(CONTAINER.glob("compose*.yaml")):
        whole = yaml.safe_load(file.read_text())
        for service in whole["services"].values():
            named = {volume.partition(":")[0] for volume in service.get("volumes", ()) if not volume.startswith(".")}
            assert named <= set(whole["volumes"]), file
            if service["image"] == "headgate" and "command" in service:
                kinds.append(service["command"].split()[0])
    assert set(kinds) == KINDS <= set(COMMANDS)


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())["replicas"]) == KINDS


@pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm here")
@pytest.mark.parametrize("fleet", [False, True])
def test_the_chart_is_rendered_as_objects_of_each_kind(fleet: bool) -> None:
    words = ["helm", "template", "ours", str(CHART), "--set", f"fleet={str(fleet).lower()},tenants=x"]
    objects = list(yaml.safe_load_all(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
    run = [one for one in objects if one["kind"] in ("Deployment", "StatefulSet")]
    found = {one["spec"]["template"]["spec"]["containers"][0]["args"][0] for one in run}
    assert found == (KINDS if fleet else {"run"})


@pytest.mark.parametrize("name", ["build", "postinst", "prerm"])
def test_scripts_of_the_debian_package_are_shell(name: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / "packaging/debian" / name)], check=True)
