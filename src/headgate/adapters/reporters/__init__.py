"""Report to people: by mail, by calls of webhooks, by messages in chats."""
