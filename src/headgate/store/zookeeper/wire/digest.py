"""The client's side of SASL's DIGEST-MD5, as ZooKeeper uses it (RFC 2831), without I/O."""

from __future__ import annotations

import re
from hashlib import md5
from secrets import token_hex

URI = "zookeeper/zk-sasl-md5"
_FIELD = re.compile(rb'([a-z-]+)=(?:"([^"]*)"|([^,]*))')


def answer(challenge: bytes, user: str, password: str, nonce: str = "", *, uri: str = URI) -> bytes:
    """Return the answer to the server's challenge. Raise ValueError for an invalid challenge."""
    fields = {name.decode(): (quoted or plain).decode() for name, quoted, plain in _FIELD.findall(challenge)}
    if "nonce" not in fields:
        raise ValueError(f"no challenge of DIGEST-MD5: {challenge[:80]!r}")
    realm, theirs, ours = fields.get("realm", ""), fields["nonce"], nonce or token_hex(16)
    secret = md5(f"{user}:{realm}:{password}".encode()).digest() + f":{theirs}:{ours}".encode()
    proof = f"{md5(secret).hexdigest()}:{theirs}:00000001:{ours}:auth:{_hex(f'AUTHENTICATE:{uri}')}"
    return (
        f'charset=utf-8,username="{user}",realm="{realm}",nonce="{theirs}",nc=00000001,cnonce="{ours}",'
        f'digest-uri="{uri}",maxbuf=65536,response={_hex(proof)},qop=auth'
    ).encode()


def _hex(value: str) -> str:
    return md5(value.encode()).hexdigest()
