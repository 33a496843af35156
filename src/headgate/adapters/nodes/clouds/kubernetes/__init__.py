"""Drive Kubernetes: pods and namespaces, by plain calls of its API."""
