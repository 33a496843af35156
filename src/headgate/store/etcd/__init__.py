"""Keep the tree in etcd."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Headgate reports errors itself, once
