"""The tree in etcd."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong we say ourselves, once
