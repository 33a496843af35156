"""The reference pages that are generated."""
