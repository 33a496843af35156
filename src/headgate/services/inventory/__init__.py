"""Serve the inventory: objects in the store, indexes that find them, and a gRPC interface."""
