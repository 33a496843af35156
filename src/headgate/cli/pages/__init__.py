"""Generate reference pages."""
