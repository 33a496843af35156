"""The port of forges, played by a driver of its own."""
