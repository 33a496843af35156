"""The messages on the wire and in the store; the `_pb2` modules are made of the `.proto` files by `make proto`."""
