"""Clouds, clusters and container engines that make machines."""
