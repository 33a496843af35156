"""Declare the keys of the drivers of machines: in sections, in providers, and in the parts that these attach."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from headgate.config.files import checks
from headgate.config.files.source import UNKNOWN_WORD
from headgate.config.keys.forms import loose, words


class NodeDriver(NamedTuple):
    own: checks.Keys
    """Keys of sections and providers beyond the common ones."""
    images: checks.Keys
    flavors: checks.Keys
    labels: checks.Keys
    complete: bool = True
    """Whether these are all of its keys; if not, unknown keys are ignored."""
    refuses: bool = False
    """Whether an unknown key of a section or provider is an error."""
    formats: tuple[str, ...] = ()
    """Formats of files that it accepts as images, the usual one first; empty if it accepts none."""

    @property
    def attached(self) -> tuple[tuple[str, checks.Keys], ...]:
        """Return each key of a section or provider that attaches something, with the keys allowed in its entries."""
        return ("images", self.images), ("flavors", self.flavors), ("labels", self.labels)


def _key(check: checks.Check, default: str = "", note: str = "") -> checks.StanzaKey:
    """Return a key whose value may be null, which counts as absent."""
    return checks.StanzaKey(checks.either(checks.null, check), default, note)


def _label_itself(value: Any, spot: checks.ValueSpot) -> None:
    spot.warn("has no effect here: set it in the stanza of the label", UNKNOWN_WORD)


def _amounts(value: Any, spot: checks.ValueSpot) -> None:
    checks.mapping.see(value, spot)
    for kind, most in value.items():
        # YAML has `.inf` and `.nan`. No amount is ever greater than NaN, so it would be no limit.
        number = isinstance(most, int | float) and not isinstance(most, bool) and math.isfinite(most) and most >= 0
        if most is not None and not number:
            raise spot.wrong(f"must have a number of at least 0 for {kind}, not {checks.show(most)}")


AMOUNTS = checks.Check("a mapping of kinds to numbers", _amounts, schema=checks.mapping.schema)
_ITSELF = checks.StanzaKey(checks.Check("set in the stanza of the label", _label_itself))
SLOTS_MAX = 100
"""Largest number of concurrent builds on one machine."""
_SLOTS = checks.count(1, SLOTS_MAX)
LISTED_MAX = 500
"""Largest number of slots on all machines that a provider lists."""
CONNECTIONS = ("ssh", "winrm", "kubectl", "network_cli")
"""Supported ways to reach a machine. Others are rejected, because `local` would mean the executor's own machine."""
_TEXTS = checks.many(checks.text)
_NAMED: checks.Keys = {
    "name": checks.StanzaKey(checks.text, required=True),
    "description": _key(checks.text),
    "final": _key(checks.flag, "false"),
    "allow-override": _key(checks.flag, "false", "may be redefined although it is final"),
}
IMAGE: checks.Keys = {
    **_NAMED,
    "username": _key(checks.text),
    "connection-type": _key(words(*CONNECTIONS), "ssh"),
    "connection-port": _key(checks.count(1, 65535), "22", "5986 for winrm"),
    "python-path": _key(checks.text, "auto"),
    "shell-type": _key(checks.text),
    "userdata": _key(checks.text, note="for images of the cloud"),
    "import-timeout": _key(checks.count(0), "300"),
    "upload-methods": _key(checks.many(words("copy", "import", "upload")), "all"),
    "tags": _key(checks.mapping, "{}"),
    "retain-count": checks.StanzaKey(checks.anything, "2"),
    "max-retain-count": checks.StanzaKey(checks.anything),
    "rebuild-age": _key(checks.count(60), "none", "seconds after which an image that jobs build is built again"),
}
"""Keys of an image. The number of builds to retain is checked where sections and images are combined."""
FLAVOR: checks.Keys = {**_NAMED, "public-ipv4": _key(checks.flag, "false"), "public-ipv6": _key(checks.flag, "false")}
LABEL: checks.Keys = {
    **_NAMED,
    "image": _key(checks.text),
    "flavor": _key(checks.text),
    "boot-timeout": _key(checks.count(0), "300"),
    "max-ready-age": _key(checks.count(0), "0"),
    "max-age": _key(checks.count(0), "0"),
    "min-retention-time": _key(checks.count(0), "0"),
    "snapshot-timeout": _key(checks.count(0), "3600"),
    "snapshot-expiration": _key(checks.count(0), "604800"),
    "slots": _key(_SLOTS, "1", "builds at a time on one machine"),
    "reuse": _key(checks.flag, "false"),
    "aliases": _key(_TEXTS, "none"),
    "executor-zone": _key(checks.text),
    "tags": _key(checks.mapping, "{}"),
    "key-name": _key(checks.text),
    "host-key-checking": _key(checks.flag, "true"),
    "min-ready": _ITSELF,
    "max-nodes": _ITSELF,
}
OWN: checks.Keys = {
    "launch-timeout": _key(checks.count(0), "none"),
    "launch-attempts": _key(checks.count(1), "3"),
    "resource-limits": _key(AMOUNTS, "none"),
    "image-defaults": _key(checks.mapping, "{}", "keys of images"),
    "flavor-defaults": _key(checks.mapping, "{}", "keys of flavors"),
    "label-defaults": _key(checks.mapping, "{}", "keys of labels"),
}
"""Keys that every driver has."""

_USERDATA: checks.Keys = {"userdata": _key(checks.text)}
_VOLUME: checks.Keys = {
    "volume-size": _key(checks.count(0)),
    "volume-type": _key(checks.text, "gp3"),
    "iops": _key(checks.count(0)),
    "throughput": _key(checks.count(0)),
}
AWS_IMPORTS = {
    "snapshot": ("raw", "vhd", "vmdk"),
    "image": ("raw", "vhd", "vhdx", "vmdk", "ova"),
    "ebs-direct": ("raw",),
}
"""Method by which AWS imports a file as an image -> formats that it accepts, the usual one first."""
# This method accepts all formats that the other two accept.
AWS_FORMATS = AWS_IMPORTS["image"]
_FLEET: checks.Keys = {"instance-types": _key(_TEXTS), "allocation-strategy": _key(checks.text)}
AWS = NodeDriver(
    own={
        **OWN,
        "region": _key(checks.text),
        "object-storage": _key(loose({"bucket-name": _key(checks.text)}, "an object-storage")),
    },
    images={
        **IMAGE,
        **_VOLUME,
        "image-id": _key(checks.text),
        "image-filters": _key(
            checks.many(loose({"name": _key(checks.text), "values": _key(checks.many(checks.text))}, "an image-filter"))
        ),
        "imds-http-tokens": _key(checks.text),
        "import-method": _key(words(*AWS_IMPORTS), "snapshot", "how AWS turns a file that jobs build into an image"),
        "import-timeout": _key(checks.count(0), "300", "seconds that AWS may take to import a file; 0: no limit"),
        "image-format": _key(words(*AWS_FORMATS), "raw", "of an image that jobs build"),
        "architecture": _key(words("x86_64", "arm64", "i386"), "x86_64", "of an image that jobs build"),
        "ena-support": _key(checks.flag, "true", "of an image that jobs build; the method `image` detects it"),
        "imds-support": _key(words("v2.0"), note="of an image that jobs build"),
    },
    flavors={
        **FLAVOR,
        **_USERDATA,
        **_VOLUME,
        "instance-type": _key(checks.text),
        "fleet": _key(loose(_FLEET, "a fleet")),
        "market-type": _key(words("on-demand", "spot"), "on-demand"),
        "dedicated-host": _key(checks.flag, "false"),
        "ebs-optimized": _key(checks.flag, "false"),
    },
    labels={
        **LABEL,
        **_USERDATA,
        **_VOLUME,
        "az": _key(checks.text),
        "subnet-ids": _key(_TEXTS),
        "security-group-ids": _key(_TEXTS),
        "iam-instance-profile": _key(
            loose({"name": _key(checks.text), "arn": _key(checks.text)}, "an iam-instance-profile")
        ),
        "kms-key-id": _key(checks.text),
    },
    # As in Zuul, an unknown key is an error in sections and providers of AWS and of OpenStack.
    refuses=True,
    formats=AWS_FORMATS,
)
_DISK: checks.Keys = {"config-drive": _key(checks.flag, "true"), "volume-size": _key(checks.count(0))}
OPENSTACK_FORMATS = ("qcow2", "raw", "vhd", "vhdx")
OPENSTACK = NodeDriver(
    own={
        **OWN,
        "region": _key(checks.text),
        "floating-ip-cleanup": _key(checks.flag, "false"),
        "port-cleanup-interval": _key(checks.count(0), "600"),
    },
    images={
        **IMAGE,
        **_DISK,
        "image-id": _key(checks.text),
        "image-format": _key(words(*OPENSTACK_FORMATS), "qcow2", "of an image that jobs build"),
    },
    flavors={**FLAVOR, **_USERDATA, **_DISK, "flavor-name": _key(checks.text)},
    labels={
        **LABEL,
        **_USERDATA,
        "az": _key(checks.text),
        "auto-floating-ip": _key(checks.flag, "true"),
        "boot-from-volume": _key(checks.flag, "false"),
        "networks": _key(_TEXTS),
        "security-groups": _key(_TEXTS),
        "volume-size": _key(checks.count(0)),
    },
    refuses=True,
    formats=OPENSTACK_FORMATS,
)
_HOST_KEY_LINE = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{1,16000}={0,3}")
_ADDRESS = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")


def _host_key(value: Any, spot: checks.ValueSpot) -> None:
    checks.text.see(value, spot)
    lines = [line.strip() for line in value.splitlines() if line.strip()]
    if not lines or not all(_HOST_KEY_LINE.fullmatch(line) for line in lines):
        raise spot.wrong(
            "must be public keys, one per line, as TYPE BASE64: the output of ssh-keyscan without the host"
        )


def _address(value: Any, spot: checks.ValueSpot) -> None:
    checks.text.see(value, spot)
    # A program that receives it as an argument would mistake a leading dash for an option.
    if not _ADDRESS.fullmatch(value) or value.startswith("-"):
        raise spot.wrong(f"must be a host name or an address, not {checks.show(value)}")


_ADDRESSED = checks.Check("a host name or an address", _address, schema=checks.text.schema)
STATIC_NODE: checks.Keys = {
    "name": checks.StanzaKey(_ADDRESSED, required=True, note="its host name or address"),
    "label": checks.StanzaKey(checks.text, required=True),
    "host": _key(_ADDRESSED, "the name", "the address, if the name is not one"),
    "aliases": _key(_TEXTS, "none", "further labels of this machine"),
    "connection-type": _key(words("ssh", "winrm", "network_cli"), "the image's"),
    "connection-port": _key(checks.count(1, 65535), "the image's"),
    "username": _key(checks.text, "the image's"),
    "host-key": _key(
        checks.Check("public keys, one per line", _host_key, schema=checks.text.schema),
        "accepted and recorded at the first connection",
    ),
    "python-path": _key(checks.text, "the image's"),
    "shell-type": _key(checks.text, "the image's"),
    "slots": _key(_SLOTS, "the label's", "builds at a time"),
    "attributes": _key(checks.mapping, "{}", "what jobs see as `nodepool.node_properties`"),
}
STATIC = NodeDriver(
    {**OWN, "nodes": _key(checks.many(checks.inner(STATIC_NODE, "node")))}, IMAGE, FLAVOR, LABEL, refuses=True
)
KUBERNETES = NodeDriver(
    own=OWN,
    images={**IMAGE, "connection-type": _key(words("kubectl", "ssh", "winrm", "network_cli"), "kubectl")},
    flavors=FLAVOR,
    labels={
        **LABEL,
        "kind": _key(words("pod", "namespace")),
        "spec": _key(checks.mapping, note="the spec of the pod, as in Kubernetes"),
        "annotations": _key(checks.mapping),
        "image-pull-secrets": _key(
            checks.many(loose({"name": _key(checks.text), "namespace": _key(checks.text)}, "a pull secret"))
        ),
    },
)
PODMAN_FORMATS = ("tar",)
PODMAN = NodeDriver(
    own=OWN,
    images={
        **IMAGE,
        "image-id": _key(checks.text, note="the image that podman pulls, with its registry"),
        "image-format": _key(words(*PODMAN_FORMATS), "tar", "of an image that jobs build: its root file system"),
    },
    flavors={
        **FLAVOR,
        "cores": _key(checks.anything, "1", "may be a fraction"),
        "ram": _key(checks.count(16), "2048", "MiB"),
        "pids": _key(checks.count(16), "4096", "processes"),
    },
    labels=LABEL,
    formats=PODMAN_FORMATS,
)
NODE_DRIVERS = {"aws": AWS, "openstack": OPENSTACK, "static": STATIC, "kubernetes": KUBERNETES, "podman": PODMAN}
"""Driver of a connection -> keys that it accepts."""
ANY_NODES = NodeDriver(OWN, IMAGE, FLAVOR, LABEL, complete=False)
"""Keys that every driver of machines understands."""
NO_UPLOADS = {
    "kubernetes": "a cluster accepts no uploads: push it to a registry, name it in the pod's spec, and use type cloud",
}
"""Driver that never accepts images that jobs build -> text for the user: the reason and what to do instead."""
