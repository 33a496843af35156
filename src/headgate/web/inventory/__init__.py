"""Serve the inventory: gRPC as clients of runm-metadata know it, gRPC with all there is, and JSON over HTTP."""
