"""Pages before a real Gerrit."""
