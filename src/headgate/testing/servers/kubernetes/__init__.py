"""Serve a modelled cluster of Kubernetes."""
