"""Reports to people: as mail, as calls of webhooks, as messages in chats."""
