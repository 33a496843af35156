"""Define the part of etcd's v3 interface that is used here.

`etcd_pb2` is generated from `etcd.proto` (`make proto`). Field numbers and method paths are those of the published
interface; the package has a name of its own, so that it can coexist with other bindings.
"""
