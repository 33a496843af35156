"""Pass on what podman says, and keep why it failed."""

from __future__ import annotations

from headgate.adapters.process.processes import Sink

WHY_SIZE_MAX_BYTES = 4_096


class Last:
    """Pass output on, and keep the last line that says why something failed."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._rest, self.why = sink, b"", "podman said nothing"

    def write(self, chunk: bytes) -> None:
        self._sink.write(chunk)
        # Cut before the split: a registry may send a message without an end.
        *lines, self._rest = (self._rest + chunk)[-WHY_SIZE_MAX_BYTES:].split(b"\n")
        for one in lines:
            text = one.decode(errors="replace").strip()
            if text.startswith("Error:"):
                self.why = text.removeprefix("Error:").strip()

    def say(self, text: str) -> None:
        self._sink.say(text)
