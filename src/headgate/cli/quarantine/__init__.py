"""`headgate quarantine`: items that were set aside because handling them raised errors."""
