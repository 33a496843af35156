"""Test that docstrings are sentences that begin with a verb."""

from __future__ import annotations

import ast
import builtins
import re
from typing import NamedTuple

from tests.house.sources import MODULES, ROOT, SOURCE, TOYS, WRITTEN, facts, name

VERBS = """
    Accept Account Act Add Adjust Admit Advance Allow Announce Answer Append Apply Approve Ask Assemble Assign
    Attach Await Base Become Begin Bind Bound Break Bring Build Cache Call Cancel Carry Change Check Choose Claim
    Close Collect Combine Comment Commit Compare Compile Complete Compress Compute Configure Confine Connect
    Continue Control Convert Copy Count Crash Create Cut Decide Declare Decode Decompress Decrypt Define Delete
    Delimit Deliver Describe Detect Determine Digest Discard Discover Divide Do Draw Drive Drop Encode Encrypt End
    Enqueue Enter Enumerate Escape Estimate Evaluate Examine Excuse Expire Explain Export Extend Fail Fetch Fill
    Find Fire Flag Follow Force Forget Format Forward Freeze Generate Give Grant Group Hand Handle Have Hear Hold
    Identify Ignore Imitate Implement Import Indent Index Insert Inspect Install Interfere Join Judge Keep Kill Know
    Land Launch Lead Learn Lease Leave Lend Let Limit List Listen Load Locate Lock Log Look Lose Make Manage Map
    Mark Match Measure Merge Model Mount Move Name Note Notify Number Obey Observe Offer Open Order Own Pack Park
    Parse Pass Pause Perform Permit Plan Play Poke Poll Post Precede Prepare Print Probe Process Propose Protect
    Prove Provide Publish Pull Push Put Query Queue Raise Read Reap Rebuild Receive Record Redirect Reduce Refuse
    Register Relay Release Reload Remember Remind Remove Rename Render Renew Repair Replace Report Represent Request
    Require Reserve Reset Resolve Restart Restore Restrict Resume Retry Return Review Revoke Run Say Scan Seal
    Search See Select Send Serve Set Settle Shape Share Shorten Show Sign Simulate Skip Sort Speak Specify Split
    Stack Stage Stand Start State Step Stop Store Stream Strike Submit Sum Summarise Supply Sweep Switch Tag Take
    Talk Tell Test Timeout Trace Track Translate Trust Try Turn Undo Unlink Unregister Update Upload Use Verify View
    Vote Wait Wake Warn Watch Withdraw Work Wrap Write Yield
"""
"""First words of docstrings.  Add yours if it is a verb in the imperative."""
WORDS = frozenset(VERBS.split())


LARGE = 30
"""Lines from which a class needs a docstring."""
SENTENCE = re.compile(r"(?<=[.?!])\s")
RAISED = re.compile(r"\b[Rr]aises?\s+([A-Z]\w+(?:(?:,\s+|,?\s+(?:and|or)\s+)[A-Z]\w+)*)")
FOREIGN = {
    "AioRpcError", "CalledProcessError", "NoSuchCommand", "PyJWTError", "RemoteProtocolError", "TimeoutExpired",
    "WebSocketDisconnect", "ZstdError",
}  # fmt: skip
"""Errors of libraries that docstrings name."""


GENERATED = {"etcd_pb2", "inventory_pb2", "runm_pb2"}


class Described(NamedTuple):
    """Name a class or function that has a docstring."""

    path: str
    name: str
    text: str

    @property
    def is_sentence(self) -> bool:
        return self.text.split()[0].rstrip(".,:;") in WORDS


def test_docstrings_of_classes_and_functions_open_with_a_verb() -> None:
    found = [Described(name(path), *described) for path in WRITTEN for described in facts(path).docstrings]
    assert len(found) > 5000
    fragments = [one for one in found if not one.is_sentence and one.path != "cli/main.py"]
    assert not [f"{one.path} {one.name}: {SENTENCE.split(one.text)[0]}" for one in fragments]


def test_large_public_classes_have_a_docstring() -> None:
    found = [
        f"{path.relative_to(ROOT)} {node.name}"
        for path in (*WRITTEN, *TOYS)  # so that a copy of a toy is accepted
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node) is None
        if (node.end_lineno or node.lineno) - node.lineno >= LARGE
    ]
    assert not found


def test_docstrings_of_modules_open_with_a_verb_and_end_their_first_line_with_a_full_stop() -> None:
    modules = [path for path in MODULES if path.stem not in GENERATED and path != SOURCE / "__init__.py"]
    described = [(path, ast.get_docstring(ast.parse(path.read_text()))) for path in modules]
    first = [(name(path), text.split("\n", 1)[0]) for path, text in described if text]
    assert len(first) > 700
    assert not [one for one in first if one[1].split()[0].rstrip(".,:;") not in WORDS or not one[1].endswith(".")]


def test_names_in_other_modules_that_docstrings_refer_to_exist() -> None:
    referred = re.compile(r"`((?:[a-z_]+\.)*[a-z_]+)\.([A-Z]\w*)(?:\.(\w+))?`")
    modules = {f".{name(path)}"[:-3].replace("/", "."): path for path in WRITTEN}
    found = [
        (name(path), match[0])
        for path in WRITTEN
        for match in referred.finditer(path.read_text())
        if (ours := [facts(other) for end, other in modules.items() if end.endswith(f".{match[1]}")])
        and not any(match[2] in one.names and match[3] in (None, *one.names) for one in ours)
    ]
    assert not found


def test_errors_that_docstrings_name_exist() -> None:
    known = {one for path in WRITTEN for one, _ in facts(path).classes} | set(dir(builtins)) | FOREIGN
    described = [(name(path), text) for path in WRITTEN for _, text in facts(path).docstrings]
    raised = [
        (path, error)
        for path, text in described
        for m in RAISED.finditer(text)
        for error in re.findall(r"[A-Z]\w+", m[1])
    ]
    assert len(raised) > 500
    assert not [one for one in raised if one[1] not in known]
