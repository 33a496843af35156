"""Test which host keys a new machine must have."""

from __future__ import annotations

import pytest

from headgate.ports.clouds import HOST_KEY_VARIABLE, MachineUnusable
from headgate.services.nodes.machines.life import believed

MADE, OTHER = "ssh-ed25519 AAAAmade", "ssh-rsa AAAAother"


def test_the_key_that_a_machine_was_made_with_is_believed_and_no_other() -> None:
    assert believed({HOST_KEY_VARIABLE: MADE}, f"{MADE}\n{OTHER}") == MADE
    with pytest.raises(MachineUnusable, match="does not have the key that the machine was created with"):
        believed({HOST_KEY_VARIABLE: MADE}, OTHER)


def test_a_machine_made_without_a_known_key_is_trusted_with_its_first_answer() -> None:
    assert believed({}, f"{MADE}\n{OTHER}") == f"{MADE}\n{OTHER}"
