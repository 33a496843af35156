"""Drive clouds, clusters and container engines that make machines."""
