"""Test that the shipped packages name existing files and commands.

`make packages` builds them, and helm, which then also renders the chart here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
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
COMPONENT, BUDGET = "app.kubernetes.io/component", "PodDisruptionBudget"
KINDS = {"scheduler", "merger", "launcher", "executor", "web"}


def test_the_image_copies_existing_files_that_no_ignore_file_excludes() -> None:
    text = (CONTAINER / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    included = set(re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE))
    assert copied and all((ROOT / path).exists() for path in copied)
    assert all(any(Path(path).is_relative_to(one) for one in included) for path in copied)


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


def test_settings_of_the_compose_files_get_into_no_image_and_no_commit() -> None:
    """They contain secrets, and are in a directory of the checkout."""
    assert all("./config:/etc/headgate:ro" in file.read_text() for file in CONTAINER.glob("compose*.yaml"))
    place = (CONTAINER / "config").relative_to(ROOT)
    included = re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE)
    assert not any(place.is_relative_to(one) for one in included)
    assert f"{place}/" in (ROOT / ".gitignore").read_text().splitlines()


def _fleet() -> dict[str, dict[str, Any]]:
    """Return the services of the compose file of a fleet."""
    services: dict[str, dict[str, Any]] = yaml.safe_load((CONTAINER / "compose-fleet.yaml").read_text())["services"]
    return services


def test_services_of_compose_files_start_again_with_their_machine() -> None:
    """With `on-failure`, none of them does after a reboot."""
    single = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
    assert {one["restart"] for one in (*single.values(), *_fleet().values())} == {"unless-stopped"}


def test_a_new_container_keeps_the_state_of_the_former_one() -> None:
    """Logs of builds and the operator's token are there; a volume without a name stays with the former container."""
    mounted = {name: dict(volume.split(":")[:2] for volume in one["volumes"]) for name, one in _fleet().items()}
    kept = {kind: {place: name for name, place in mounted[kind].items()}["/var/lib/headgate"] for kind in KINDS}
    assert kept == {kind: kind for kind in KINDS}


def test_containers_without_jobs_gain_no_rights_and_write_only_their_state() -> None:
    for kind in KINDS - {"executor"}:
        service = _fleet()[kind]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges"]


def test_the_etcd_of_the_compose_file_deletes_old_revisions() -> None:
    assert "--auto-compaction-retention=" in _fleet()["etcd"]["command"]


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())["replicas"]) == KINDS


STORE = "settings=[store]\nurl = etcd://etcd"
"""What a fleet must have in its settings."""


def _helm(*settings: str, text: str = STORE) -> subprocess.CompletedProcess[str]:
    """Render the chart with `settings` by a real helm."""
    if HELM is None:
        pytest.skip("no helm: `make chart` builds one where Go is installed")
    values = [word for one in ("tenants=x", *settings) for word in ("--set", one)]
    words = [HELM, "template", "ours", str(CHART), "--namespace", "gates", "--set-string", text, *values]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _rendered(*settings: str) -> list[dict[str, Any]]:
    """Return the objects that helm renders from the chart with `settings`."""
    done = _helm(*settings)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def _pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pod of each kind of process."""
    return {container["args"][0]: template["spec"] for template, container in _containers(objects)}


class Network:
    """Decide as Kubernetes does what the network policies of rendered objects allow."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._templates = {one["args"][0]: (pod, one) for pod, one in _containers(objects)}
        self._policies = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
        assert self._policies

    def labels(self, kind: str) -> dict[str, str]:
        """Return the labels of the pods of a kind."""
        return dict(self._templates[kind][0]["metadata"]["labels"])

    def admits(self, caller: dict[str, str], kind: str, port: int) -> bool:
        """Return whether a pod of the same namespace with these labels may connect to the pods of a kind."""
        rules = self._rules(kind, "ingress")
        return rules is None or any(
            self._has(rule, kind, port) and _any_peer(rule.get("from"), caller, "") for rule in rules
        )

    def connects(self, kind: str, address: str, port: int) -> bool:
        """Return whether the pods of a kind may connect to an address outside the cluster."""
        rules = self._rules(kind, "egress")
        return rules is None or any(
            self._has(rule, kind, port) and _any_peer(rule.get("to"), {}, address) for rule in rules
        )

    def reaches(self, kind: str, called: dict[str, str]) -> bool:
        """Return whether the pods of a kind may connect to any port of a pod with these labels."""
        rules = self._rules(kind, "egress") or ()
        return any("ports" not in rule and _any_peer(rule.get("to"), called, "") for rule in rules)

    def _rules(self, kind: str, direction: str) -> list[dict[str, Any]] | None:
        """Return the rules for a kind; None: everything is allowed."""
        chosen = [
            policy
            for policy in self._policies
            if _fits(policy["podSelector"], self.labels(kind)) and direction.capitalize() in policy["policyTypes"]
        ]
        return [rule for policy in chosen for rule in policy.get(direction) or ()] if chosen else None

    def _has(self, rule: dict[str, Any], kind: str, port: int) -> bool:
        named = {one["name"]: one["containerPort"] for one in self._templates[kind][1].get("ports", ())}
        ports = [named.get(one["port"], one["port"]) for one in rule.get("ports", ())]
        return not ports or port in ports


def _containers(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each template of a pod with its container."""
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            template = one["spec"]["template"]
            yield template, template["spec"]["containers"][0]


def _fits(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, "the chart uses nothing else"
    return selector.get("matchLabels", {}).items() <= labels.items()


def _any_peer(peers: list[dict[str, Any]] | None, labels: dict[str, str], address: str) -> bool:
    """Return whether a pod with these labels in the same namespace, or an outside address, is among the peers."""
    if not peers:
        return True
    if not address:
        return any(_fits(peer["podSelector"], labels) for peer in peers if "podSelector" in peer)
    blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
    there = ip_address(address)
    return any(
        there in ip_network(block["cidr"]) and not any(there in ip_network(one) for one in block["except"])
        for block in blocks
    )


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


def test_a_fleet_without_a_common_store_is_refused() -> None:
    """Each process would begin with an empty store of its own."""
    done = _helm("fleet=true", text="settings=[scheduler]\nstate_dir = /var/lib/headgate")
    assert done.returncode and "the settings name no store that processes can share" in done.stderr
    for text in ("[store]\nurl=zookeeper://one", "[zookeeper]\nhosts = one"):
        assert not _helm("fleet=true", text=f"settings={text}").returncode
    assert not _helm("fleet=true", "existingSecret=own", text="settings=").returncode


def test_values_that_the_chart_does_not_have_are_refused() -> None:
    for typed in ("replica.web=3", "fleet=yes", "networkPolicy.egres.enabled=true"):
        assert "don't meet the specifications of the schema" in _helm(typed).stderr


def test_processes_without_jobs_can_write_only_their_state() -> None:
    for kind, pod in _pods(_rendered("fleet=true")).items():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        if kind != "executor":
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert writable == {"/var/lib/headgate", "/tmp"}
        limited = [one["emptyDir"] for one in pod["volumes"] if one["name"] == "state"]
        assert limited == ([] if kind == "executor" else [{"sizeLimit": "20Gi"}])


def test_only_a_launcher_gets_credentials_for_the_cluster() -> None:
    for fleet in ("true", "false"):
        for kind, pod in _pods(_rendered(f"fleet={fleet}", "serviceAccount=maker")).items():
            named = pod.get("serviceAccountName") == "maker" and "automountServiceAccountToken" not in pod
            assert named == (kind in ("run", "launcher"))


def test_processes_that_answer_have_probes() -> None:
    def probed(*settings: str) -> set[str]:
        pods = _pods(_rendered("fleet=true", *settings))
        for pod in pods.values():
            (container,) = pod["containers"]
            ports = {one["name"] for one in container.get("ports", ())}
            probes = [container[name]["httpGet"] for name in container if name.endswith("Probe")]
            assert {one["port"] for one in probes} <= ports and len(probes) in (0, 3)
        return {kind for kind, pod in pods.items() if "livenessProbe" in pod["containers"][0]}

    assert probed() == {"web"}
    assert probed("metricsPorts.scheduler=9101", "metricsPorts.executor=9103") == {"web", "scheduler", "executor"}
    assert probed("probeScheme=") == set()


def test_drains_of_nodes_leave_a_process_of_each_kind() -> None:
    objects = _rendered("fleet=true")
    budgets = {one["spec"]["selector"]["matchLabels"][COMPONENT]: one for one in objects if one["kind"] == BUDGET}
    assert budgets.keys() == KINDS and all(one["spec"]["maxUnavailable"] == 1 for one in budgets.values())
    for kind, pod in _pods(objects).items():
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"][COMPONENT] == kind
    assert not [one for one in _rendered("fleet=false") if one["kind"] == BUDGET]


def test_web_processes_find_executors_by_their_host_names() -> None:
    """The host name of a pod resolves only within the domain of its service."""
    objects = _rendered("fleet=true")
    (executors,) = (one for one in objects if one["kind"] == "StatefulSet")
    (service,) = (one for one in objects if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None")
    assert executors["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["publishNotReadyAddresses"], "a paused executor has logs"
    domain = f"{service['metadata']['name']}.gates.svc.cluster.local"
    assert _pods(objects)["web"]["dnsConfig"]["searches"] == [domain]


PROMETHEUS = "networkPolicy.metricsFrom[0].podSelector.matchLabels.name=prometheus"
PORTS = ("metricsPorts.scheduler=9101", "metricsPorts.executor=9103")
STRANGER = {"name": "stranger"}


def test_pods_of_a_fleet_answer_only_those_who_need_them() -> None:
    network = Network(_rendered("fleet=true", *PORTS, PROMETHEUS))
    web, executor, scheduler = (network.labels(kind) for kind in ("web", "executor", "scheduler"))
    assert network.admits(STRANGER, "web", 9000) and not network.admits(STRANGER, "web", 9001)
    assert network.admits(web, "executor", 9103) and not network.admits(web, "executor", 22)
    assert not network.admits(executor, "scheduler", 9101), "a job is in the network of its executor"
    assert not network.admits(STRANGER, "executor", 9103) and not network.admits(scheduler, "executor", 9103)
    assert network.admits({"name": "prometheus"}, "scheduler", 9101)
    assert network.admits({"name": "prometheus"}, "executor", 9103)
    assert network.admits(web, "executor", 50_000) is False
    free = Network(_rendered("fleet=true"))
    assert free.admits(web, "executor", 50_000), "without metricsPorts, an executor chooses a port"
    assert not free.admits(STRANGER, "executor", 50_000)


def test_pages_may_be_open_to_a_proxy_alone() -> None:
    proxy = "networkPolicy.webFrom[0].podSelector.matchLabels.name=proxy"
    for fleet, kind in (("true", "web"), ("false", "run")):
        network = Network(_rendered(f"fleet={fleet}", proxy, PROMETHEUS))
        admitted = [network.admits({"name": name}, kind, 9000) for name in ("proxy", "prometheus", "stranger")]
        assert admitted == [True, True, False]
    assert Network(_rendered()).admits(STRANGER, "run", 9000)
    assert not Network(_rendered()).admits(STRANGER, "run", 10_002)


def test_pods_connect_only_where_the_values_say() -> None:
    assert Network(_rendered("fleet=true")).connects("executor", "192.0.2.1", 31_337), "by default, anywhere"
    network = Network(_rendered("fleet=true", "networkPolicy.egress.enabled=true"))
    for kind in KINDS:
        assert all(network.connects(kind, "192.0.2.1", port) for port in (22, 53, 443, 2379, 5432))
        assert all(network.connects(kind, "2001:db8::1", port) for port in (22, 53, 443))
        assert not network.connects(kind, "192.0.2.1", 31_337)
        assert not any(network.connects(kind, one, 80) for one in ("169.254.169.254", "fd00:ec2::254"))
    assert network.reaches("web", network.labels("executor")) and not network.reaches("web", STRANGER)


def test_the_network_policy_can_be_left_out() -> None:
    objects = _rendered("fleet=true", "networkPolicy.enabled=false")
    assert not [one for one in objects if one["kind"] == "NetworkPolicy"]


def _installed(tmp_path: Path, *words: str) -> list[str]:
    """Run the script `postinst` as dpkg does on a machine with systemd, and return the commands that it runs."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    (tmp_path / "systemd").mkdir()
    log.touch()
    for name in ("getent", "useradd", "chown", "chmod", "systemctl"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        (programs / name).chmod(0o755)
    text = (ROOT / "packaging/debian/postinst").read_text().replace("/run/systemd/system", str(tmp_path / "systemd"))
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", text, "postinst", "configure", *words], check=True, env=path)
    return log.read_text().splitlines()


def test_a_new_package_closes_the_settings_and_starts_nothing(tmp_path: Path) -> None:
    found = _installed(tmp_path, "")
    assert "chmod 700 /etc/headgate" in found and not [one for one in found if "restart" in one]


def test_an_upgraded_package_restarts_running_processes_and_keeps_permissions(tmp_path: Path) -> None:
    """A process of the former version would load modules of the new one."""
    found = _installed(tmp_path, "0.1.0")
    assert found[-2:] == ["systemctl daemon-reload", "systemctl try-restart headgate@*.service"]
    assert not [one for one in found if one.startswith(("chmod", "chown"))]


@pytest.mark.parametrize("name", ["build", "postinst", "prerm", "try"])
def test_scripts_of_the_debian_package_are_shell(name: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / "packaging/debian" / name)], check=True)
