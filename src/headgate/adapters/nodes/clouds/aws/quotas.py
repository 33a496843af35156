"""Count what one instance takes of an account, in AWS's own quotas beside instances, cores and memory."""

from __future__ import annotations

import re

from headgate.ports.cloud import Amounts

STANDARD = frozenset("acdhimrtz")
ON_DEMAND = {
    "standard": "L-1216C47A",
    "f": "L-74FC7D96",
    "g": "L-DB2E81BA",
    "vt": "L-DB2E81BA",
    "p": "L-417A185B",
    "x": "L-7295265B",
    "inf": "L-1945791B",
}
SPOT = {
    "standard": "L-34B43A08",
    "f": "L-88CF9481",
    "g": "L-3819A6DF",
    "vt": "L-3819A6DF",
    "p": "L-7212CCBC",
    "x": "L-E3A00192",
    "inf": "L-B5D1601B",
}
"""Family of instance types -> the quota of virtual cores of its spot instances."""
COUNTED = frozenset([*ON_DEMAND.values(), *SPOT.values()])


def quota(instance_type: str, spot: bool) -> str:
    """Return the code of the quota for the cores of such an instance; empty if none is known."""
    family = re.match(r"[a-z]*", instance_type)
    name = family[0] if family else ""
    table = SPOT if spot else ON_DEMAND
    # First: `inf` begins like the standard family `i`, and has its own quota.
    if name in table:
        return table[name]
    # Longer names such as `hpc`, `mac` or `trn` have quotas of their own, except for im4gn and is4gen.
    return table["standard"] if name[:1] in STANDARD and (len(name) == 1 or name in ("im", "is")) else ""


def uses(instance_type: str, cores: int, memory_mib: int, spot: bool) -> Amounts:
    """Return the resources that one instance uses."""
    found = {"instances": 1.0, "cores": float(cores), "ram": float(memory_mib)}
    code = quota(instance_type, spot)
    return {**found, code: float(cores)} if code else found
