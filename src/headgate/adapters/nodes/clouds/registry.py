"""List the drivers of clouds in one place: a new driver needs a row here, and a module with a function `connect`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from headgate.adapters.option import ConnectionOption
from headgate.base.errors import LackingError

if TYPE_CHECKING:  # commands that only list drivers must not load these modules
    from headgate.ports.clouds import Cloud

RATE = ConnectionOption(
    "number", "2", "how many requests per second to send, lists and launches together; 0: no limit."
)
"""Option of every cloud, which the launcher applies."""


class CloudDriverOptions(NamedTuple):
    """Hold the settings of one connection for its driver."""

    name: str
    options: Mapping[str, str]
    """Options that are set in the connection's section."""
    directory: Path
    """Directory of the settings file; paths are relative to it."""


class CloudDriver(NamedTuple):
    """Describe one driver."""

    module: str
    """Module with `connect(given: CloudDriverOptions) -> Cloud`, which sends no request and raises UserError; imported
    only when needed."""
    settings: Mapping[str, ConnectionOption]
    """Options besides RATE."""
    needed: tuple[str, str] = ("", "")
    """A required option, and its meaning; empty if no option is required."""
    extra: str = ""
    """Extra whose packages the driver needs: `pip install 'headgate[EXTRA]'`; empty if it needs none."""
    rated: bool = True
    """Whether it sends requests, which `rate` limits."""


class MissingLibrary(LackingError):
    """Report that a library of the driver is not installed; only a launcher needs it."""


class _Module(Protocol):
    def connect(self, given: CloudDriverOptions) -> Cloud: ...


_AWS = {
    "access_key_id": ConnectionOption(
        "text", "", "the access key of the account. Default: the key that AWS's own tools find on this machine."
    ),
    "secret_access_key": ConnectionOption("text", "", "its secret."),
    "shared_credentials_file": ConnectionOption("path", "", "a file of keys. Default: `~/.aws/credentials`."),
    "profile": ConnectionOption("text", "", "the section of that file. Default: `$AWS_PROFILE`, or `default`."),
    "role_arn": ConnectionOption("text", "", "a role to assume with the key or the token."),
    "web_identity_token_file": ConnectionOption(
        "path", "", "the token with which to assume role_arn, instead of a key."
    ),
    "endpoint_url": ConnectionOption(
        "text",
        "",
        "a URL that replaces those of AWS: EC2, S3, EBS, STS and Service Quotas at one address.",
    ),
}
_KUBERNETES = {
    "kubeconfig_file": ConnectionOption(
        "path",
        "",
        "the file with the cluster and the user. Default: kubectl's, or the cluster that Headgate runs in.",
    ),
    "context": ConnectionOption("text", "", "the context in that file. Default: its current one."),
    "room_timeout": ConnectionOption("seconds", "120", "how long a pod may wait for the cluster to grow."),
    "use_openshift_projects": ConnectionOption("flag", "false", "create OpenShift projects instead of namespaces."),
}
_PODMAN = {
    "authorized_keys": ConnectionOption("path", "", "public ssh keys of the executors, which log in to machines."),
    "deny": ConnectionOption(
        "text", "", "networks that machines cannot reach, in addition to those that no build can reach."
    ),
    "runtime": ConnectionOption("text", "", "the program that starts containers, such as runc. Default: podman's own."),
}
_OPENSTACK = {
    "cloud": ConnectionOption("text", "", "the cloud in clouds.yaml. Default: `$OS_CLOUD`, or the only one."),
    "config_file": ConnectionOption(
        "path", "", "the path of clouds.yaml. Default: `$OS_CLIENT_CONFIG_FILE`, or where OpenStack's tools search."
    ),
}
_STATIC = {
    "hosts": ConnectionOption(
        "text",
        "",
        "machines that may be listed: names with `*`, addresses, networks, separated by spaces. Default: any.",
    ),
    "projects": ConnectionOption(
        "text", "", "canonical names, with `*`, of projects that may list them, separated by spaces. Default: any."
    ),
}
_HERE = "headgate.adapters.nodes.clouds"
CLOUDS: dict[str, CloudDriver] = {
    "aws": CloudDriver(f"{_HERE}.aws.driver", _AWS),
    "kubernetes": CloudDriver(f"{_HERE}.kubernetes.driver", _KUBERNETES),
    "podman": CloudDriver(f"{_HERE}.podman.driver", _PODMAN, ("authorized_keys", "whose keys log in to its machines")),
    "openstack": CloudDriver(f"{_HERE}.openstack.driver", _OPENSTACK),
    "static": CloudDriver(f"{_HERE}.static.driver", _STATIC, rated=False),
}
"""Name of the driver, as settings and `config.keys.nodes` use it -> its row."""


def settings_of(driver: str) -> dict[str, ConnectionOption]:
    """Return the options of a driver's connections, including RATE if it sends requests."""
    return {**CLOUDS[driver].settings, **({"rate": RATE} if CLOUDS[driver].rated else {})}


def connect(driver: str, given: CloudDriverOptions) -> Cloud:
    """Connect to the cloud. Raise UserError for errors in the section; MissingLibrary."""
    row = CLOUDS[driver]
    try:
        module = importlib.import_module(row.module)
    except ModuleNotFoundError as error:
        # A missing module of Headgate itself is a bug, which no package repairs.
        if not row.extra or (error.name or "").startswith("headgate"):
            raise
        text = f"it needs a library ({error.name}): pip install 'headgate[{row.extra}]'"
        raise MissingLibrary(text) from error
    return cast(_Module, module).connect(given)
