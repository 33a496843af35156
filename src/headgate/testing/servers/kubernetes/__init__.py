"""A modelled cluster of Kubernetes."""
