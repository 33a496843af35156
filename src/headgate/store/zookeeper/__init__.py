"""Keep the tree in ZooKeeper: a small client of its protocol, and the translation of nodes to entries."""
