"""Provide coordination on the store's few verbs: locks, streams, requests, mirrors, blobs, members."""
