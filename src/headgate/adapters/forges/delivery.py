"""Read the content of a webhook's delivery, in either of the two content types that forges offer."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from headgate.ports.forge import Misdelivered

FORM_MAX_BYTES = 1 << 19
"""Largest delivery that is sent as a form: parsing one blocks all other requests, and its sender may not be verified
yet."""


def is_form(headers: Mapping[str, str]) -> bool:
    """Tell whether the JSON is a field of a form, which GitHub and Gitea offer as an alternative."""
    kind, _, _ = headers.get("content-type", "").partition(";")
    return kind.strip().lower() == "application/x-www-form-urlencoded"


def unfolded(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the JSON of a delivery: its body, or the field `payload` of a form.  Raise Misdelivered."""
    if not is_form(headers):
        return body
    advice = "set the content type of the webhook to application/json"
    if len(body) > FORM_MAX_BYTES:
        raise Misdelivered(f"the delivery is a form of more than {FORM_MAX_BYTES} bytes; {advice}", 413)
    try:
        # Without a bound on the fields, a form of half a megabyte is split into a hundred thousand pairs.
        fields = dict(parse_qsl(body.decode(), max_num_fields=8, errors="strict"))
    except ValueError as error:
        raise Misdelivered(f"the delivery is not a form: {error}; {advice}", 400) from error
    if "payload" not in fields:
        raise Misdelivered(f"the delivery is a form without the field payload; {advice}", 400)
    return fields["payload"].encode("utf-8", "replace")
