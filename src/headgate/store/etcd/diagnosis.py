"""Find out why no server can be used, by connecting without gRPC, which does not report the reason."""

from __future__ import annotations

import asyncio
import ssl

from headgate.store.etcd.address import EtcdAddress

WITHIN_S = 3.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The bytes with which an HTTP/2 client begins, and an empty settings frame; a server answers with its own."""
SETTINGS = 4


async def reasons(address: EtcdAddress) -> str:
    """Describe, for each server, why it cannot be used."""
    return "; ".join(await asyncio.gather(*(_of(host, address) for host in address.hosts)))


async def _of(host: str, address: EtcdAddress) -> str:
    try:
        async with asyncio.timeout(WITHIN_S):
            head = await _first_bytes(host, address)
    except TimeoutError:
        return f"{host} does not answer"
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {host} is not good: {error.verify_message}"
    except ssl.SSLError as error:
        plain = "WRONG_VERSION" in str(error)
        return f"{host}: {error.reason}; " + ("does it speak TLS?" if plain else "is tls_cert one it accepts?")
    except ConnectionRefusedError:
        return f"{host}: nobody listens"
    except OSError as error:
        return f"{host}: {str(error) or 'closed by the server'}; {_hint(address)}"
    # A frame begins with three bytes of length; the fourth is its type.
    if head[3:4] == bytes([SETTINGS]):
        return f"{host} is there, and does not serve"
    return f"{host}: it does not speak as etcd does; {_hint(address)}"


def _hint(address: EtcdAddress) -> str:
    return "does it speak TLS, and is tls_cert one it accepts?" if address.tls_ca else "does it want TLS (tls_ca=…)?"


async def _first_bytes(host: str, address: EtcdAddress) -> bytes:
    """Return the head of the first frame of the answer, or whatever else the server sends."""
    name, _, port = host.rpartition(":")
    reader, writer = await asyncio.open_connection(name.strip("[]"), int(port), ssl=_context(address))
    try:
        writer.write(PREFACE)
        return await reader.read(9)
    finally:
        writer.transport.abort()


def _context(address: EtcdAddress) -> ssl.SSLContext | None:
    if not address.tls_ca:
        return None
    context = ssl.create_default_context(cafile=address.tls_ca)
    # Servers of gRPC may end a TLS connection on which HTTP/2 was not agreed.
    context.set_alpn_protocols(["h2"])
    if address.tls_cert:
        context.load_cert_chain(address.tls_cert, address.tls_key or None)
    return context
