"""The inventory under calls nobody would make."""
