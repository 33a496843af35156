"""Every call of the reference's API, and what answers it here: as there, otherwise, or not, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

T = "/api/tenant/{tenant}"
_GRAPH = T + "/pipeline/{pipeline}/project/{project}/branch/{branch}"
_DONE = "answered once it is done, or with 409 and why not"
_UNDER_WAY = "also those under way"


class Call(NamedTuple):
    """`how`: in which way it is answered otherwise; `absent`: nothing answers it."""

    method: str
    path: str
    how: str = ""
    absent: bool = False


CALLS = (
    Call("GET", "/api"),
    Call("GET", "/api/info"),
    Call("GET", "/api/tenants", "also how many projects and items a tenant has"),
    Call("GET", "/api/connections"),
    Call("GET", "/api/components", "also what each has to do, and may"),
    Call("GET", "/api/authorizations"),
    Call("POST", "/api/connection/{name}/payload", "a delivery is a hint where to look"),
    Call("GET", "/openapi.yaml", "describes every answer; also as JSON at `/openapi/openapi.json`"),
    Call("GET", "/.well-known/openid-configuration", "jobs are given no tokens, so nobody issues them", absent=True),
    Call("GET", "/oidc/jwks", "as above", absent=True),
    Call("GET", T + "/info", "404 for a tenant that is none"),
    Call("GET", T + "/authorizations"),
    Call("GET", T + "/status", "entity tag, compression; times are at most a second old"),
    Call("GET", T + "/status/change/{change}", "a change in any spelling"),
    Call("GET", T + "/tenant-status"),
    Call("GET", T + "/semaphores"),
    Call("WEBSOCKET", T + "/console-stream"),
    Call("GET", T + "/jobs"),
    Call("GET", T + "/job/{job}"),
    Call("GET", T + "/projects"),
    Call("GET", T + "/project/{project}"),
    Call("GET", T + "/pipelines"),
    Call("GET", _GRAPH + "/freeze-jobs", "409 and why, for a graph that cannot be frozen"),
    Call("GET", _GRAPH + "/freeze-job/{job}", "409, as above"),
    Call("POST", T + "/project/{project}/freeze-pipeline"),
    Call("GET", T + "/config-errors"),
    Call("GET", T + "/key/{project}.pub"),
    Call("GET", T + "/project-ssh-key/{project}.pub", "projects have no SSH keys: 404"),
    Call("GET", T + "/tenant-ssh-key/ssh.pub", "tenants have no SSH keys: 404"),
    Call("GET", T + "/badge"),
    Call("GET", T + "/builds", _UNDER_WAY),
    Call("GET", T + "/build/{uuid}", _UNDER_WAY),
    Call("GET", T + "/buildsets", _UNDER_WAY),
    Call("GET", T + "/buildset/{uuid}", _UNDER_WAY),
    Call("GET", T + "/build-times"),
    Call("GET", T + "/system-events", "the last configuration that came into force, and the last that was asked for"),
    Call("GET", T + "/labels"),
    Call("GET", T + "/flavors"),
    Call("GET", T + "/nodes"),
    Call("PUT", T + "/nodes/{uuid}"),
    Call("GET", T + "/nodeset-requests"),
    Call("DELETE", T + "/nodeset-requests/{uuid}"),
    Call("GET", T + "/providers"),
    Call("GET", T + "/images"),
    Call("POST", T + "/image/{name}/build"),
    Call("DELETE", T + "/image-build-artifact/{id}"),
    Call("DELETE", T + "/image-upload/{id}"),
    Call("POST", T + "/image-upload/{id}/validate"),
    Call("POST", T + "/image-upload/{id}/upload"),
    Call("GET", T + "/autohold"),
    Call("GET", T + "/autohold/{id}"),
    Call("DELETE", T + "/autohold/{id}"),
    Call("GET", T + "/project/{project}/autohold"),
    Call("POST", T + "/project/{project}/autohold"),
    Call("POST", T + "/project/{project}/enqueue", _DONE),
    Call("POST", T + "/project/{project}/dequeue", _DONE),
    Call("POST", T + "/promote", _DONE),
    Call("POST", T + "/state", _DONE),
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
