"""Read the status of a pod: it runs, it is starting, or it never will run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.adapters.nodes.clouds.http import one_line

HOPELESS = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "StartError",
}  # fmt: skip
"""Reasons of a waiting container that do not pass, although the cluster retries for ever."""
STAYS = "the command of a machine is one that does not end, as `sleep infinity`"


@dataclass(frozen=True, slots=True)
class Up:
    container: str
    address: str
    host: str
    """Name of the cluster's node."""


@dataclass(frozen=True, slots=True)
class Coming:
    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Report that there is no room now. The cluster may grow, or another pod may end, at an unknown time."""

    why: str
    lacking: bool
    """Whether resources are missing; otherwise no present node would ever accept the pod."""


@dataclass(frozen=True, slots=True)
class KubernetesPodEnded:
    why: str


def reported(pod: Mapping[str, Any]) -> Up | Coming | NoRoom | KubernetesPodEnded:
    """Return the state of a pod, in the cluster's own words."""
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    # For instance an eviction, or the drain of a node of the cluster; the phase still says Running.
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return KubernetesPodEnded("the pod is being deleted by somebody else")
    # Before the phase, which stays Pending while the cluster retries a pull for ever.
    if wrong := next(_wrong(status), ""):
        return KubernetesPodEnded(wrong)
    if phase in ("Failed", "Succeeded"):
        return KubernetesPodEnded(_with_message(f"the pod has ended ({phase})", status) + _hint(phase, status))
    if phase != "Running":
        return _unscheduled(status) or Coming(_with_message(f"the pod is {phase}", status))
    # The build runs its commands in the first container; the others only accompany it.
    first = str(pod["spec"]["containers"][0]["name"])
    state: Mapping[str, Any] = next((s for name, s in _containers(status) if name == first), {})
    if "terminated" in state:
        return KubernetesPodEnded(f"container {first} {_ended(state['terminated'])}; {STAYS}")
    if "running" not in state:
        return Coming(f"container {first} is not running yet")
    return Up(first, str(status.get("podIP") or ""), str(pod["spec"].get("nodeName") or ""))


def _containers(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            yield str(one.get("name")), one.get("state") or {}


def _wrong(status: Mapping[str, Any]) -> Iterator[str]:
    for name, state in _containers(status):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            yield f"container {name}: {_with_message(str(waiting['reason']), waiting)}"


def _hint(phase: str, status: Mapping[str, Any]) -> str:
    """Return which containers ended, and with which result."""
    ended = [f"{name} {_ended(state['terminated'])}" for name, state in _containers(status) if "terminated" in state]
    return (f"; {', '.join(ended)}" if ended else "") + (f"; {STAYS}" if phase == "Succeeded" else "")


def _ended(terminated: Mapping[str, Any]) -> str:
    return _with_message(
        f"ended with {terminated.get('exitCode')} ({terminated.get('reason') or 'no reason'})", terminated
    )


def _unscheduled(status: Mapping[str, Any]) -> NoRoom | None:
    for condition in status.get("conditions") or ():
        if (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and condition.get("reason") == "Unschedulable"
        ):
            message = str(condition.get("message") or "")
            # Only the scheduler's text tells a lack of resources ("1 Insufficient cpu") from a selector that
            # matches no node.
            return NoRoom(
                _with_message("no node of the cluster takes it (Unschedulable)", condition), "nsufficient" in message
            )
    return None


def _with_message(text: str, of: Mapping[str, Any]) -> str:
    """Add the cluster's own message."""
    more = one_line(str(of.get("message") or of.get("reason") or ""))
    return f"{text}: {more}" if more and more not in text else text
