"""Play the demonstration with stand-ins for forges."""
