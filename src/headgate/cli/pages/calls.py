"""Every call of the reference's API and its counterpart here: the same, different, or missing, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

T = "/api/tenant/{tenant}"
_GRAPH = T + "/pipeline/{pipeline}/project/{project}/branch/{branch}"
_DONE = "answered once it is done, or with 409 and why not"
_UNDER_WAY = "also those under way"


class ReferenceCall(NamedTuple):
    """Describe one call of Zuul's API. `how` says how Headgate's answer differs; `absent` means that there is no
    such call here."""

    method: str
    path: str
    how: str = ""
    absent: bool = False


CALLS = (
    ReferenceCall("GET", "/api"),
    ReferenceCall("GET", "/api/info"),
    ReferenceCall("GET", "/api/tenants", "also how many projects and items a tenant has"),
    ReferenceCall("GET", "/api/connections"),
    ReferenceCall("GET", "/api/components", "also what each has to do, and may"),
    ReferenceCall("GET", "/api/authorizations"),
    ReferenceCall("POST", "/api/connection/{name}/payload", "a delivery is a hint where to look"),
    ReferenceCall("GET", "/openapi.yaml", "describes every answer; also as JSON at `/openapi/openapi.json`"),
    ReferenceCall(
        "GET", "/.well-known/openid-configuration", "jobs are given no tokens, so nobody issues them", absent=True
    ),
    ReferenceCall("GET", "/oidc/jwks", "as above", absent=True),
    ReferenceCall("GET", T + "/info", "404 for a tenant that is none"),
    ReferenceCall("GET", T + "/authorizations"),
    ReferenceCall("GET", T + "/status", "entity tag, compression; times are at most a second old"),
    ReferenceCall("GET", T + "/status/change/{change}", "a change in any spelling"),
    ReferenceCall("GET", T + "/tenant-status"),
    ReferenceCall("GET", T + "/semaphores"),
    ReferenceCall("WEBSOCKET", T + "/console-stream"),
    ReferenceCall("GET", T + "/jobs"),
    ReferenceCall("GET", T + "/job/{job}"),
    ReferenceCall("GET", T + "/projects"),
    ReferenceCall("GET", T + "/project/{project}"),
    ReferenceCall("GET", T + "/pipelines"),
    ReferenceCall("GET", _GRAPH + "/freeze-jobs", "409 and why, for a graph that cannot be frozen"),
    ReferenceCall("GET", _GRAPH + "/freeze-job/{job}", "409, as above"),
    ReferenceCall("POST", T + "/project/{project}/freeze-pipeline"),
    ReferenceCall("GET", T + "/config-errors"),
    ReferenceCall("GET", T + "/key/{project}.pub"),
    ReferenceCall("GET", T + "/project-ssh-key/{project}.pub", "projects have no SSH keys: 404"),
    ReferenceCall("GET", T + "/tenant-ssh-key/ssh.pub", "tenants have no SSH keys: 404"),
    ReferenceCall("GET", T + "/badge"),
    ReferenceCall("GET", T + "/builds", _UNDER_WAY),
    ReferenceCall("GET", T + "/build/{uuid}", _UNDER_WAY),
    ReferenceCall("GET", T + "/buildsets", _UNDER_WAY),
    ReferenceCall("GET", T + "/buildset/{uuid}", _UNDER_WAY),
    ReferenceCall("GET", T + "/build-times"),
    ReferenceCall(
        "GET", T + "/system-events", "the last configuration that came into force, and the last that was asked for"
    ),
    ReferenceCall("GET", T + "/labels"),
    ReferenceCall("GET", T + "/flavors"),
    ReferenceCall("GET", T + "/nodes"),
    ReferenceCall("PUT", T + "/nodes/{uuid}"),
    ReferenceCall("GET", T + "/nodeset-requests"),
    ReferenceCall(
        "DELETE", T + "/nodeset-requests/{uuid}", "the build that waits is canceled; 409 once it has machines"
    ),
    ReferenceCall("GET", T + "/providers"),
    ReferenceCall("GET", T + "/images"),
    ReferenceCall("POST", T + "/image/{name}/build"),
    ReferenceCall("DELETE", T + "/image-build-artifact/{id}"),
    ReferenceCall("DELETE", T + "/image-upload/{id}"),
    ReferenceCall("POST", T + "/image-upload/{id}/validate"),
    ReferenceCall("POST", T + "/image-upload/{id}/upload"),
    ReferenceCall("GET", T + "/autohold"),
    ReferenceCall("GET", T + "/autohold/{id}"),
    ReferenceCall("DELETE", T + "/autohold/{id}"),
    ReferenceCall("GET", T + "/project/{project}/autohold"),
    ReferenceCall("POST", T + "/project/{project}/autohold"),
    ReferenceCall("POST", T + "/project/{project}/enqueue", _DONE),
    ReferenceCall("POST", T + "/project/{project}/dequeue", _DONE),
    ReferenceCall("POST", T + "/promote", _DONE),
    ReferenceCall("POST", T + "/state", _DONE),
)


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "## Every call of Zuul's API"
    yield ""
    yield f"`T` is `{T}`. What is said of machines and images stands below. With `[web] tenant`, calls of"
    yield "that tenant are also there without `/tenant/{tenant}`, and its pages without `/t/{tenant}`; then `/api/info`"
    yield "names the tenant, so that clients use no other."
    yield ""
    yield "| call | here |"
    yield "|---|---|"
    for call in CALLS:
        how = f"not there: {call.how}" if call.absent else f"served; {call.how}" if call.how else "served"
        yield f"| {call.method} `{call.path.replace(T, 'T')}` | {how} |"
