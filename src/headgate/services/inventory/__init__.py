"""The inventory service: objects in the store, indexes that find them, and a gRPC interface."""
