"""`headgate quarantine`: what was set aside because handling it raised."""
