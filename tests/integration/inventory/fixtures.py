"""Do what the populate script of runm-metadata does to the service: definitions as its compiler writes them,
providers.

Run it as a program, like `client.py`. The expectations come from the published facts, not from the service.
"""

from __future__ import annotations

import json
import sys

import grpc
import runmetadata_pb2 as pb
import runmetadata_pb2_grpc

ADMIN = pb.Session(user="admin", project="proj0", partition="part0")
TEXT = {"type": "string"}
LOCATION = ("location.site", "location.row", "location.rack", "location.rack_position")


def document(properties: dict[str, object], required: list[str]) -> str:
    """Return the schema of a complete provider, as the compiler of runm-api writes it."""
    inner = {
        "type": "object",
        "properties": properties,
        "required": required,
        "patternProperties": {"^[a-zA-Z0-9]+$": TEXT},
        "additionalProperties": False,
    }
    fields = {name: TEXT for name in ("partition", "provider_type", "name", "uuid", "parent")}
    return json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {**fields, "tags": {"type": "array", "items": TEXT}, "properties": inner},
            "required": ["partition", "provider_type"],
            "additionalProperties": False,
        }
    )


def main(address: str) -> None:
    stub = runmetadata_pb2_grpc.RunmMetadataStub(grpc.insecure_channel(address))
    stub.partition_create(pb.PartitionCreateRequest(session=ADMIN, partition=pb.Partition(name="part0")))
    request = pb.ProviderDefinitionGetGlobalDefaultRequest(session=ADMIN)
    first = json.loads(stub.provider_definition_get_global_default(request).schema)
    assert sorted(first["required"]) == ["partition", "provider_type"] and first["additionalProperties"] is False
    assert sorted(first["properties"]) == [
        "name", "parent", "partition", "properties", "provider_type", "tags", "uuid",
    ]  # fmt: skip
    inner = first["properties"]["properties"]
    assert not inner.get("properties") and not inner.get("required") and inner["additionalProperties"] is False
    assert len(inner["patternProperties"]) == 1
    integer = {"type": "integer"}
    compute = {"location.site": TEXT, **{key: integer for key in LOCATION[1:]}}
    for kind, schema in (
        ("runm.compute", document(compute, sorted(compute))),
        ("runm.storage.block", document({"location.site": TEXT, "vendor": {"type": []}}, ["location.site", "vendor"])),
    ):
        rules = [pb.PropertyPermissions(key="vendor", permissions=[pb.PropertyPermission(permission=3)])]
        given = pb.ObjectDefinition(schema=schema, property_permissions=rules)
        put = pb.ProviderObjectDefinitionSetRequest(
            session=ADMIN, partition_uuid="part0", provider_type_code=kind, object_definition=given
        )
        stored = stub.provider_definition_set(put).object_definition
        both = pb.ProviderDefinitionGetByPartitionAndTypeRequest(
            session=ADMIN, partition_uuid="part0", provider_type_code=kind
        )
        assert stub.provider_definition_get_by_partition_and_type(both) == stored
        assert stored.schema == schema, "what is asked for again is what was set, byte for byte"
    for node in range(8):
        values = ("site1", str(node % 2), str(node % 4), str(node))
        properties = [pb.Property(key=key, value=value) for key, value in zip(LOCATION, values, strict=True)]
        made = pb.Object(
            partition="part0", object_type="runm.provider", name=f"node{node}", properties=properties, tags=["compute"]
        )
        stub.object_create(pb.ObjectCreateRequest(session=ADMIN, object=made))
    wanted = pb.ObjectFilter(object_type_filter=pb.ObjectTypeFilter(code_filter=pb.CodeFilter(code="runm.provider")))
    assert len(list(stub.object_find(pb.ObjectFindRequest(session=ADMIN, any=[wanted])))) == 8


if __name__ == "__main__":
    main(sys.argv[1])
    print("the fixtures are in")
