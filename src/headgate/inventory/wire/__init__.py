"""Define the messages on the wire and in the store; `make proto` generates the `_pb2` modules from `.proto` files."""
