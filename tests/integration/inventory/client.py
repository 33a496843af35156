"""Call every method once through a client generated from the published definitions alone, and check the results.

Run it as a program, with the directory of the generated modules on the path and the service's address as argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import grpc
import runmetadata_pb2 as pb
import runmetadata_pb2_grpc

ALICE = pb.Session(user="alice", project="proj0", partition="part0")


def code(call: Callable[[], object]) -> str:
    try:
        call()
    except grpc.RpcError as error:
        assert error.details()
        return error.code().name
    return "OK"


def provider(node: int, **more: object) -> pb.Object:
    properties = [
        pb.Property(key="location.site", value="site1"),
        pb.Property(key="location.row", value=str(node % 2)),
        pb.Property(key="location.rack", value=f"rack/{node}"),
    ]
    return pb.Object(
        partition="part0", object_type="runm.provider", name=f"node{node}", properties=properties, tags=["compute"]
    )


def main(address: str) -> None:
    stub = runmetadata_pb2_grpc.RunmMetadataStub(grpc.insecure_channel(address))
    part = stub.partition_create(pb.PartitionCreateRequest(partition=pb.Partition(name="part0"))).partition
    again = pb.PartitionCreateRequest(session=ALICE, partition=pb.Partition(name="part0"))
    assert code(lambda: stub.partition_create(again)) == "ALREADY_EXISTS"
    by_uuid = pb.PartitionGetByUuidRequest(session=ALICE, uuid=part.uuid.upper())
    assert stub.partition_get_by_uuid(by_uuid) == part
    assert stub.partition_get_by_name(pb.PartitionGetByNameRequest(session=ALICE, name="part0")) == part
    prefix = pb.PartitionFindFilter(name_filter=pb.NameFilter(name="pa", use_prefix=True))
    assert list(stub.partition_find(pb.PartitionFindRequest(session=ALICE, any=[prefix]))) == [part]
    types(stub)
    definitions(stub, part)
    objects(stub, part)
    deletes(stub)
    sessions(stub, part)


def types(stub: runmetadata_pb2_grpc.RunmMetadataStub) -> None:
    image = stub.object_type_get_by_code(pb.ObjectTypeGetByCodeRequest(session=ALICE, code="runm.image"))
    assert image.scope == pb.PROJECT
    missing = pb.ObjectTypeGetByCodeRequest(session=ALICE, code="no")
    assert code(lambda: stub.object_type_get_by_code(missing)) == "NOT_FOUND"
    wanted = pb.ObjectTypeFilter(code_filter=pb.CodeFilter(code="runm.provider", use_prefix=True))
    found = stub.object_type_find(pb.ObjectTypeFindRequest(session=ALICE, any=[wanted]))
    assert [one.code for one in found] == ["runm.provider", "runm.provider_group"]
    compute = pb.ProviderTypeGetByCodeRequest(session=ALICE, code="runm.compute")
    assert stub.provider_type_get_by_code(compute).code == "runm.compute"
    assert len(list(stub.provider_type_find(pb.ProviderTypeFindRequest(session=ALICE)))) == 2


def definitions(stub: runmetadata_pb2_grpc.RunmMetadataStub, part: pb.Partition) -> None:
    everywhere = stub.provider_definition_get_global_default(
        pb.ProviderDefinitionGetGlobalDefaultRequest(session=ALICE)
    )
    assert "json-schema.org" in everywhere.schema
    here = pb.ProviderDefinitionGetByPartitionRequest(session=ALICE, partition_uuid=part.uuid)
    assert code(lambda: stub.provider_definition_get_by_partition(here)) == "NOT_FOUND"
    rules = [pb.PropertyPermissions(key="k", permissions=[pb.PropertyPermission(role="admin", permission=3)])]
    given = pb.ObjectDefinition(schema='{"required": ["name"]}', property_permissions=rules)
    for type in ("", "runm.compute"):
        put = pb.ProviderObjectDefinitionSetRequest(
            session=ALICE, partition_uuid=part.uuid, provider_type_code=type, object_definition=given
        )
        first = stub.provider_definition_set(put).object_definition
        second = stub.provider_definition_set(put).object_definition
        assert first.uuid != second.uuid and second.property_permissions == given.property_permissions
    assert stub.provider_definition_get_by_partition(here).schema == given.schema
    both = pb.ProviderDefinitionGetByPartitionAndTypeRequest(
        session=ALICE, partition_uuid=part.uuid, provider_type_code="runm.compute"
    )
    assert stub.provider_definition_get_by_partition_and_type(both) == second
    by_type = pb.ProviderDefinitionGetByTypeRequest(session=ALICE, provider_type_code="runm.compute")
    assert code(lambda: stub.provider_definition_get_by_type(by_type)) == "NOT_FOUND"
    put.object_definition.schema = "no schema"
    assert code(lambda: stub.provider_definition_set(put)) == "INVALID_ARGUMENT"
    put.provider_type_code = "no.type"
    assert code(lambda: stub.provider_definition_set(put)) == "FAILED_PRECONDITION"


def objects(stub: runmetadata_pb2_grpc.RunmMetadataStub, part: pb.Partition) -> None:
    for node in range(8):
        made = stub.object_create(pb.ObjectCreateRequest(session=ALICE, object=provider(node))).object
        assert made.partition == part.uuid and len(made.uuid) == 32
    same = pb.ObjectCreateRequest(session=ALICE, object=provider(7))
    assert code(lambda: stub.object_create(same)) == "ALREADY_EXISTS"
    hyphened = f"{made.uuid[:8]}-{made.uuid[8:12]}-{made.uuid[12:16]}-{made.uuid[16:20]}-{made.uuid[20:]}"
    assert stub.object_get_by_uuid(pb.ObjectGetByUuidRequest(session=ALICE, uuid=hyphened.upper())) == made
    named = pb.ObjectGetByNameRequest(session=ALICE, object_type_code="runm.provider", name="node7")
    assert stub.object_get_by_name(named) == made
    named.name = "node99"
    assert code(lambda: stub.object_get_by_name(named)) == "NOT_FOUND"
    row, rack = pb.Property(key="location.row", value="1"), pb.Property(key="location.rack", value="rack/3")
    for wanted, names in (
        (pb.PropertyFilter(require_items=[row]), ["node1", "node3", "node5", "node7"]),
        (pb.PropertyFilter(require_items=[row, rack]), ["node3"]),
        (pb.PropertyFilter(any_items=[rack, pb.Property(key="location.rack", value="rack/4")]), ["node3", "node4"]),
        (
            pb.PropertyFilter(any_keys=["location.site", "other"], forbid_items=[row]),
            ["node0", "node2", "node4", "node6"],
        ),
        (pb.PropertyFilter(forbid_keys=["location.site"]), []),
        (pb.PropertyFilter(require_keys=["location.site", "location.site"], require_items=[rack]), ["node3"]),
    ):
        assert found(stub, pb.ObjectFilter(property_filter=wanted)) == names
    last = pb.ObjectFilter(
        name_filter=pb.NameFilter(name="node", use_prefix=True), uuid_filter=pb.UuidFilter(uuid=hyphened)
    )
    assert found(stub, last) == ["node7"]
    unknown = pb.ObjectFilter(object_type_filter=pb.ObjectTypeFilter(code_filter=pb.CodeFilter(code="no")))
    assert found(stub, unknown, last) == ["node7"]
    assert code(lambda: found(stub, unknown)) == "FAILED_PRECONDITION"
    pages = pb.SearchOptions(limit=3, sort_fields=[pb.SortField(field="name", direction=pb.DESC)])
    first = list(stub.object_find(pb.ObjectFindRequest(session=ALICE, options=pages)))
    assert [one.name for one in first] == ["node7", "node6", "node5"]
    pages.marker = first[-1].uuid
    second = list(stub.object_find(pb.ObjectFindRequest(session=ALICE, options=pages)))
    assert [one.name for one in second] == ["node4", "node3", "node2"]


def found(stub: runmetadata_pb2_grpc.RunmMetadataStub, *any: pb.ObjectFilter) -> list[str]:
    """Return the names sorted: without a sort, the order of an answer is undefined."""
    return sorted(one.name for one in stub.object_find(pb.ObjectFindRequest(session=ALICE, any=any)))


def deletes(stub: runmetadata_pb2_grpc.RunmMetadataStub) -> None:
    image = pb.Object(partition="part0", object_type="runm.image", name="debian")
    image.properties.add(key="architecture", value="x86_64")
    image.tags.append("unicorn")
    made = stub.object_create(pb.ObjectCreateRequest(session=ALICE, object=image)).object
    assert made.project == "proj0"
    for stranger in (pb.Session(user="bob", project="proj1", partition="part0"),):
        gone = pb.ObjectDeleteByUuidsRequest(session=stranger, uuids=[made.uuid])
        assert code(lambda: stub.object_delete_by_uuids(gone)) in ("NOT_FOUND", "PERMISSION_DENIED")  # noqa: B023
        get = pb.ObjectGetByUuidRequest(session=stranger, uuid=made.uuid)
        assert code(lambda: stub.object_get_by_uuid(get)) == "NOT_FOUND"  # noqa: B023
    several = [one.uuid for one in stub.object_find(pb.ObjectFindRequest(session=ALICE)) if one.name < "node6"]
    spared = {made.uuid}
    gone = pb.ObjectDeleteByUuidsRequest(session=ALICE, uuids=[u for u in several if u not in spared] + ["f" * 32])
    assert stub.object_delete_by_uuids(gone).num_deleted == 6
    assert sorted(found(stub)) == ["debian", "node6", "node7"]


def sessions(stub: runmetadata_pb2_grpc.RunmMetadataStub, part: pb.Partition) -> None:
    assert code(lambda: list(stub.object_find(pb.ObjectFindRequest()))) == "INVALID_ARGUMENT"
    for missing in ("user", "partition", "project"):
        session = pb.Session()
        session.CopyFrom(ALICE)
        session.ClearField(missing)
        request = pb.ObjectFindRequest(session=session)
        assert code(lambda: list(stub.object_find(request))) == "FAILED_PRECONDITION"  # noqa: B023
    hyphened = f"{part.uuid[:8]}-{part.uuid[8:12]}-{part.uuid[12:16]}-{part.uuid[16:20]}-{part.uuid[20:]}"
    same = pb.Session(user="alice", project="proj0", partition=hyphened.upper())
    assert len(list(stub.object_find(pb.ObjectFindRequest(session=same)))) == 3
    elsewhere = pb.Session(user="alice", project="proj0", partition="nowhere")
    assert code(lambda: list(stub.object_find(pb.ObjectFindRequest(session=elsewhere)))) == "FAILED_PRECONDITION"


if __name__ == "__main__":
    main(sys.argv[1])
    print("every method answers as published")
