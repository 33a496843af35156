"""Serve the inventory: gRPC as clients of runm-metadata know it, the complete gRPC API, and JSON over HTTP."""
