"""Define the part of etcd's v3 interface that is used here.

`etcd_pb2` is generated from `etcd.proto` (`make proto`); field numbers and method paths are the published interface,
the package is our own, so that it can live beside other bindings.
"""
