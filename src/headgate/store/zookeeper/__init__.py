"""The tree in ZooKeeper: a small client of its protocol, and what makes its nodes the store's entries."""
