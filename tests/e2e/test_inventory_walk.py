"""Test that every line of docs/how-to/use-the-inventory.md runs unchanged, where its ports are free."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headgate.testing.servers.databases import etcd_installed

from .copied import Page, run

PAGE = Page("use-the-inventory.md", __file__)
block, lines = PAGE.block, PAGE.lines
NODE = shutil.which("node")
PACKAGES = Path(__file__).parents[1] / "node" / "node_modules"
"""The packages of tests/node/package-lock.json, which `make test` installs if npm exists."""


def written(root: Path) -> None:
    (root / "racks.yaml").write_text(block("# racks.yaml"))
    (root / "m1.yaml").write_text(block("# m1.yaml"))
    (root / "machines.yaml").write_text(block("# machines.yaml"))
    (root / "machines.csv").write_text(block("name,object_type"))


@pytest.mark.long
def test_from_nothing_to_machines_that_are_leased_and_searched(tmp_path: Path) -> None:
    """The example definition does not lock the example machine, and `fsck` runs beside the server, or says what to
    do."""
    written(tmp_path)
    serve, _ = lines("headgate inventory serve   ")
    export, *fill, watch = lines("export RUNM_USER")
    bulk, define = lines("headgate inventory import"), lines("headgate inventory definition set")
    leases, quotas = lines("ID=$("), lines("headgate inventory quota set")
    health = lines("headgate inventory health list")
    proto, generate, program = lines("headgate inventory proto")
    (lease,) = lines("HEADGATE_TOKEN=$(cat state/token) node")
    (tmp_path / "gpus.py").write_text(block("# gpus.py"))
    (tmp_path / "program.py").write_text(block("# program.py"))
    (tmp_path / "lease.mjs").write_text(block("// lease.mjs"))
    output = run(
        f"""
{serve} --http-port 10003 > serve.log & until_said serve.log "HTTP is at"
{export}
{_all(fill)}
{watch} > watch.log & watching=$!
{_all(bulk)}; grep -q '"g1"' racks.json
{_all(define)}
if headgate inventory fsck --repair 2> repair.log; then exit 1; fi; grep "stop it to repair" repair.log
until_said watch.log rack_position=17; kill $watching
{_all(leases)}
{_all(quotas)}; headgate inventory quota list
{_all(health[:-1])}; headgate inventory health list; {health[-1]}
headgate inventory quota delete people; headgate inventory quota delete gpus
python gpus.py
{proto}; {generate}; {program}
{f"{lease}; {client_in_node(tmp_path)}" if NODE else ""}
headgate inventory lease list --json; headgate inventory fsck
""",
        tmp_path,
    )
    for text in ("3 created", "profiling", "held", "40 in 168 h", "its fan is loud", "g1 64", "mine: g", "g2 has 128"):
        assert text in output, output
    if NODE:
        assert '"name":"g' in output
    if NODE and PACKAGES.is_dir():
        assert "leased g" in output and "CREATED m1" in output, output
    assert output.count("0 findings") == 2


def client_in_node(root: Path) -> str:
    """Return the command of the generated client; None if its packages are not installed."""
    (command,) = lines("TOKEN=$(cat state/token) node")
    (root / "client.mjs").write_text(block("// client.mjs"))
    if not PACKAGES.is_dir():
        return "true"
    (root / "node_modules").symlink_to(PACKAGES)
    return command


@pytest.mark.long
@pytest.mark.skipif(not etcd_installed(), reason="needs Debian's package etcd-server")
def test_on_etcd_and_where_programs_of_runm_metadata_look(tmp_path: Path) -> None:
    _, on_etcd = lines("headgate inventory serve   ")
    (compatible,) = lines("headgate inventory serve --compatible")
    output = run(
        f"""
etcd --data-dir etcd > etcd.log 2>&1 & until_up http://127.0.0.1:2379/health
{on_etcd} > serve.log 2>&1 & until_said serve.log "HTTP is at"; kill $!; wait $! || true
{compatible} > old.log 2>&1 & until_said old.log "is served"
until_said old.log "gRPC"
for _ in $(seq 1800); do etcdctl get --prefix gsr/ --keys-only | tee keys; test -s keys && break; sleep 0.1; done
""",
        tmp_path,
        hosts="etcd1 etcd2 etcd3",
        ETCDCTL_API="3",
    )
    assert "gsr/services/runmachine-metadata/127.0.0.1:10002" in output


@pytest.mark.long
def test_a_job_gets_machines_by_labels_of_its_tenant(tmp_path: Path) -> None:
    """They are checked together with the example of `headgate init`."""
    (tmp_path / "labels.yaml").write_text(block("# tenants.yaml"))
    (tmp_path / "job.yaml").write_text(block("# zuul.yaml"))
    (tmp_path / "merge.py").write_text(
        """
import sys, yaml
have, more = yaml.safe_load(open("gate/tenants.yaml")), yaml.safe_load(open("labels.yaml"))
have[0]["tenant"].update({name: value for name, value in more[0]["tenant"].items() if name != "name"})
open("gate/tenants.yaml", "w").write(yaml.safe_dump(have))
"""
    )
    output = run(
        """
headgate init gate > /dev/null; python merge.py
git clone -q gate/repositories/config work; mkdir -p work/zuul.d work/playbooks
file=$(ls work/zuul.yaml work/zuul.d/*.yaml 2>/dev/null | head -1); cat job.yaml >> $file
echo "- {hosts: all, tasks: [{ping: }]}" > work/playbooks/integration.yaml
git -C work add .; git -C work -c user.name=a -c user.email=a@b commit -qm more; git -C work push -q
headgate check --config gate/headgate.conf
""",
        tmp_path,
    )
    assert ": no errors" in output, output


def test_every_block_is_run_by_one_of_these() -> None:
    assert not PAGE.left_out


def _all(commands: list[str]) -> str:
    return "\n".join(commands)
