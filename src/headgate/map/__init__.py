"""Every place in the store, declared once: what is not here does not exist."""
