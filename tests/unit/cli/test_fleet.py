"""Test which machines Headgate recognises as its own."""

from __future__ import annotations

from pathlib import Path

from headgate.cli.launch.fleet import fleet
from headgate.cli.settings import read
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

SETTINGS = """
[store]
url = zookeeper://headgate:secret@zk1.example:2181,10.0.0.2/chroot
[database]
dburi = postgresql+psycopg://headgate:secret@history.example/headgate
[messages]
url = postgresql://headgate:secret@messages.example/messages
listen_address = 0.0.0.0
[web]
root = https://gate.example/
listen_address = 10.0.0.9
[connection queue]
driver = queue
url = http://queue.example:5000/v1/app/
[connection local]
baseurl = ssh://git.example/
"""


def test_the_fleet_contains_the_hosts_that_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "headgate.conf").write_text(SETTINGS)
    store = Store(MemoryBackend())
    found = fleet(read(tmp_path / "headgate.conf"), Context(store, Mirror(store, Map().path), lambda: 0))()
    assert {"zk1.example", "10.0.0.2", "history.example", "messages.example", "gate.example"} < set(found)
    assert {"10.0.0.9", "queue.example"} < set(found) and not {"0.0.0.0", "git.example"} & set(found)


def test_the_servers_of_etcd(tmp_path: Path) -> None:
    (tmp_path / "headgate.conf").write_text("[store]\nurl = etcd://a.example:2379,[2001:db8::1]:2379/headgate\n")
    store = Store(MemoryBackend())
    found = fleet(read(tmp_path / "headgate.conf"), Context(store, Mirror(store, Map().path), lambda: 0))()
    assert {"a.example", "2001:db8::1"} < set(found)
