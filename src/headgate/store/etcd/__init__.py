"""The tree in etcd."""
