"""The inventory service: objects in the store, found by their indexes, told over gRPC."""
