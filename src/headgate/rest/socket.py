"""A websocket."""

from __future__ import annotations

from starlette import websockets
from starlette.websockets import WebSocketDisconnect


class WebSocket(websockets.WebSocket):
    """Represent a websocket to a client."""

    async def receive_text(self) -> str:
        """Return the next message, whether it was sent as text or as bytes. Raise WebSocketDisconnect."""
        message = await self.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return text if text is not None else (message.get("bytes") or b"").decode(errors="replace")
