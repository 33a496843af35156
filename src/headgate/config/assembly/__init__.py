"""Assemble a layout: admit stanzas, refuse others, and report references to undefined names."""
