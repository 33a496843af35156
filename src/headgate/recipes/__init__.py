"""Coordination from the store's few verbs: locks, streams, requests, mirrors, blobs, members."""
