from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Session(_message.Message):
    __slots__ = ("user", "project", "partition")
    USER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    user: str
    project: str
    partition: str
    def __init__(self, user: _Optional[str] = ..., project: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class Object(_message.Message):
    __slots__ = ("partition", "type", "project", "uuid", "name", "properties", "tags", "generation")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    partition: str
    type: str
    project: str
    uuid: str
    name: str
    properties: _containers.ScalarMap[str, str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    def __init__(self, partition: _Optional[str] = ..., type: _Optional[str] = ..., project: _Optional[str] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., tags: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("key", "value", "prefix", "order")
    class Order(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AS_TEXT: _ClassVar[Item.Order]
        LESS: _ClassVar[Item.Order]
        AT_MOST: _ClassVar[Item.Order]
        MORE: _ClassVar[Item.Order]
        AT_LEAST: _ClassVar[Item.Order]
    AS_TEXT: Item.Order
    LESS: Item.Order
    AT_MOST: Item.Order
    MORE: Item.Order
    AT_LEAST: Item.Order
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    prefix: bool
    order: Item.Order
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., prefix: bool = ..., order: _Optional[_Union[Item.Order, str]] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("partitions", "types", "project", "every_project", "uuids", "name", "name_prefix", "require_items", "require_keys", "any_items", "any_keys", "forbid_items", "forbid_keys", "require_tags", "any_tags", "forbid_tags", "uuid_prefix")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    EVERY_PROJECT_FIELD_NUMBER: _ClassVar[int]
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_KEYS_FIELD_NUMBER: _ClassVar[int]
    ANY_ITEMS_FIELD_NUMBER: _ClassVar[int]
    ANY_KEYS_FIELD_NUMBER: _ClassVar[int]
    FORBID_ITEMS_FIELD_NUMBER: _ClassVar[int]
    FORBID_KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_TAGS_FIELD_NUMBER: _ClassVar[int]
    ANY_TAGS_FIELD_NUMBER: _ClassVar[int]
    FORBID_TAGS_FIELD_NUMBER: _ClassVar[int]
    UUID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[str]
    types: _containers.RepeatedScalarFieldContainer[str]
    project: str
    every_project: bool
    uuids: _containers.RepeatedScalarFieldContainer[str]
    name: str
    name_prefix: bool
    require_items: _containers.RepeatedCompositeFieldContainer[Item]
    require_keys: _containers.RepeatedScalarFieldContainer[str]
    any_items: _containers.RepeatedCompositeFieldContainer[Item]
    any_keys: _containers.RepeatedScalarFieldContainer[str]
    forbid_items: _containers.RepeatedCompositeFieldContainer[Item]
    forbid_keys: _containers.RepeatedScalarFieldContainer[str]
    require_tags: _containers.RepeatedScalarFieldContainer[str]
    any_tags: _containers.RepeatedScalarFieldContainer[str]
    forbid_tags: _containers.RepeatedScalarFieldContainer[str]
    uuid_prefix: str
    def __init__(self, partitions: _Optional[_Iterable[str]] = ..., types: _Optional[_Iterable[str]] = ..., project: _Optional[str] = ..., every_project: bool = ..., uuids: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., name_prefix: bool = ..., require_items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., require_keys: _Optional[_Iterable[str]] = ..., any_items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., any_keys: _Optional[_Iterable[str]] = ..., forbid_items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., forbid_keys: _Optional[_Iterable[str]] = ..., require_tags: _Optional[_Iterable[str]] = ..., any_tags: _Optional[_Iterable[str]] = ..., forbid_tags: _Optional[_Iterable[str]] = ..., uuid_prefix: _Optional[str] = ...) -> None: ...

class Sort(_message.Message):
    __slots__ = ("field", "descending")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    field: str
    descending: bool
    def __init__(self, field: _Optional[str] = ..., descending: bool = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("session", "any", "limit", "page_token", "sort", "with_count", "filters")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    WITH_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    session: Session
    any: _containers.RepeatedCompositeFieldContainer[Filter]
    limit: int
    page_token: str
    sort: _containers.RepeatedCompositeFieldContainer[Sort]
    with_count: bool
    filters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., any: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ..., sort: _Optional[_Iterable[_Union[Sort, _Mapping]]] = ..., with_count: bool = ..., filters: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("objects", "next_page_token", "revision", "count", "count_is_least", "bounded")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNT_IS_LEAST_FIELD_NUMBER: _ClassVar[int]
    BOUNDED_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[Object]
    next_page_token: str
    revision: int
    count: int
    count_is_least: bool
    bounded: bool
    def __init__(self, objects: _Optional[_Iterable[_Union[Object, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision: _Optional[int] = ..., count: _Optional[int] = ..., count_is_least: bool = ..., bounded: bool = ...) -> None: ...

class GetObjectRequest(_message.Message):
    __slots__ = ("session", "uuid", "type", "name")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuid: str
    type: str
    name: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuid: _Optional[str] = ..., type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Patch(_message.Message):
    __slots__ = ("uuid", "expected_generation", "name", "set_properties", "remove_properties", "add_tags", "remove_tags")
    class SetPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    UUID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    REMOVE_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ADD_TAGS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TAGS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    expected_generation: int
    name: str
    set_properties: _containers.ScalarMap[str, str]
    remove_properties: _containers.RepeatedScalarFieldContainer[str]
    add_tags: _containers.RepeatedScalarFieldContainer[str]
    remove_tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, uuid: _Optional[str] = ..., expected_generation: _Optional[int] = ..., name: _Optional[str] = ..., set_properties: _Optional[_Mapping[str, str]] = ..., remove_properties: _Optional[_Iterable[str]] = ..., add_tags: _Optional[_Iterable[str]] = ..., remove_tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Removal(_message.Message):
    __slots__ = ("uuid", "expected_generation")
    UUID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    expected_generation: int
    def __init__(self, uuid: _Optional[str] = ..., expected_generation: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("create", "update", "delete")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    create: Object
    update: Patch
    delete: Removal
    def __init__(self, create: _Optional[_Union[Object, _Mapping]] = ..., update: _Optional[_Union[Patch, _Mapping]] = ..., delete: _Optional[_Union[Removal, _Mapping]] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("session", "steps", "validate_only", "in_parts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    IN_PARTS_FIELD_NUMBER: _ClassVar[int]
    session: Session
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    validate_only: bool
    in_parts: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., validate_only: bool = ..., in_parts: bool = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("objects", "revision", "failures")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[Object]
    revision: int
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, objects: _Optional[_Iterable[_Union[Object, _Mapping]]] = ..., revision: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("step", "status", "detail")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    step: int
    status: str
    detail: str
    def __init__(self, step: _Optional[int] = ..., status: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("session", "uuid")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuid: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuid: _Optional[str] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("kind", "old", "new", "user", "project", "at_ms", "revision")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Change.Kind]
        CREATED: _ClassVar[Change.Kind]
        UPDATED: _ClassVar[Change.Kind]
        DELETED: _ClassVar[Change.Kind]
    UNKNOWN: Change.Kind
    CREATED: Change.Kind
    UPDATED: Change.Kind
    DELETED: Change.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: Change.Kind
    old: Object
    new: Object
    user: str
    project: str
    at_ms: int
    revision: int
    def __init__(self, kind: _Optional[_Union[Change.Kind, str]] = ..., old: _Optional[_Union[Object, _Mapping]] = ..., new: _Optional[_Union[Object, _Mapping]] = ..., user: _Optional[str] = ..., project: _Optional[str] = ..., at_ms: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("session", "revision", "any")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    revision: int
    any: _containers.RepeatedCompositeFieldContainer[Filter]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., revision: _Optional[int] = ..., any: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("changes", "revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("uuid", "name", "generation")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    generation: int
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class ListPartitionsRequest(_message.Message):
    __slots__ = ("session", "limit", "page_token")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session: Session
    limit: int
    page_token: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPartitionsResponse(_message.Message):
    __slots__ = ("partitions", "next_page_token")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    next_page_token: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SetPartitionRequest(_message.Message):
    __slots__ = ("session", "partition", "expected_generation")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition: Partition
    expected_generation: int
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., expected_generation: _Optional[int] = ...) -> None: ...

class DeletePartitionRequest(_message.Message):
    __slots__ = ("session", "partition")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition: _Optional[str] = ...) -> None: ...

class Type(_message.Message):
    __slots__ = ("code", "description", "per_project", "provider")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PER_PROJECT_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    code: str
    description: str
    per_project: bool
    provider: bool
    def __init__(self, code: _Optional[str] = ..., description: _Optional[str] = ..., per_project: bool = ..., provider: bool = ...) -> None: ...

class ListTypesRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListTypesResponse(_message.Message):
    __slots__ = ("types",)
    TYPES_FIELD_NUMBER: _ClassVar[int]
    types: _containers.RepeatedCompositeFieldContainer[Type]
    def __init__(self, types: _Optional[_Iterable[_Union[Type, _Mapping]]] = ...) -> None: ...

class SetTypeRequest(_message.Message):
    __slots__ = ("session", "type")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    type: Type
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., type: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...

class DeleteTypeRequest(_message.Message):
    __slots__ = ("session", "code", "provider")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    session: Session
    code: str
    provider: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., code: _Optional[str] = ..., provider: bool = ...) -> None: ...

class Permission(_message.Message):
    __slots__ = ("key", "project", "role", "read", "write")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    key: str
    project: str
    role: str
    read: bool
    write: bool
    def __init__(self, key: _Optional[str] = ..., project: _Optional[str] = ..., role: _Optional[str] = ..., read: bool = ..., write: bool = ...) -> None: ...

class Definition(_message.Message):
    __slots__ = ("uuid", "schema", "permissions")
    UUID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    schema: str
    permissions: _containers.RepeatedCompositeFieldContainer[Permission]
    def __init__(self, uuid: _Optional[str] = ..., schema: _Optional[str] = ..., permissions: _Optional[_Iterable[_Union[Permission, _Mapping]]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("type", "partition", "kind")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    type: str
    partition: str
    kind: str
    def __init__(self, type: _Optional[str] = ..., partition: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class GetDefinitionRequest(_message.Message):
    __slots__ = ("session", "place", "exact")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    session: Session
    place: Place
    exact: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., exact: bool = ...) -> None: ...

class SetDefinitionRequest(_message.Message):
    __slots__ = ("session", "place", "definition")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    place: Place
    definition: Definition
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., definition: _Optional[_Union[Definition, _Mapping]] = ...) -> None: ...

class DeleteDefinitionRequest(_message.Message):
    __slots__ = ("session", "place")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    place: Place
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class DefinitionResponse(_message.Message):
    __slots__ = ("definition", "place")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    definition: Definition
    place: Place
    def __init__(self, definition: _Optional[_Union[Definition, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("id", "user", "project", "partition", "search", "amounts", "duration_s", "precedence", "note", "state", "object", "name", "asked_ms", "begun_ms", "until_ms", "ended_ms", "why", "ahead", "requested_ms")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Lease.State]
        WAITING: _ClassVar[Lease.State]
        HELD: _ClassVar[Lease.State]
        CLEANING: _ClassVar[Lease.State]
        ENDED: _ClassVar[Lease.State]
    UNKNOWN: Lease.State
    WAITING: Lease.State
    HELD: Lease.State
    CLEANING: Lease.State
    ENDED: Lease.State
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    PRECEDENCE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ASKED_MS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    project: str
    partition: str
    search: str
    amounts: _containers.ScalarMap[str, str]
    duration_s: int
    precedence: int
    note: str
    state: Lease.State
    object: str
    name: str
    asked_ms: int
    begun_ms: int
    until_ms: int
    ended_ms: int
    why: str
    ahead: int
    requested_ms: int
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., project: _Optional[str] = ..., partition: _Optional[str] = ..., search: _Optional[str] = ..., amounts: _Optional[_Mapping[str, str]] = ..., duration_s: _Optional[int] = ..., precedence: _Optional[int] = ..., note: _Optional[str] = ..., state: _Optional[_Union[Lease.State, str]] = ..., object: _Optional[str] = ..., name: _Optional[str] = ..., asked_ms: _Optional[int] = ..., begun_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., why: _Optional[str] = ..., ahead: _Optional[int] = ..., requested_ms: _Optional[int] = ...) -> None: ...

class AskLeaseRequest(_message.Message):
    __slots__ = ("session", "search", "amounts", "duration_s", "precedence", "note", "wait_s")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    PRECEDENCE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: Session
    search: str
    amounts: _containers.ScalarMap[str, str]
    duration_s: int
    precedence: int
    note: str
    wait_s: int
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., search: _Optional[str] = ..., amounts: _Optional[_Mapping[str, str]] = ..., duration_s: _Optional[int] = ..., precedence: _Optional[int] = ..., note: _Optional[str] = ..., wait_s: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("session", "id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    id: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., id: _Optional[str] = ...) -> None: ...

class ExtendLeaseRequest(_message.Message):
    __slots__ = ("session", "id", "duration_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    session: Session
    id: str
    duration_s: int
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., id: _Optional[str] = ..., duration_s: _Optional[int] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("name", "project", "user", "search", "property", "most", "hours", "window_hours")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_HOURS_FIELD_NUMBER: _ClassVar[int]
    name: str
    project: str
    user: str
    search: str
    property: str
    most: str
    hours: str
    window_hours: int
    def __init__(self, name: _Optional[str] = ..., project: _Optional[str] = ..., user: _Optional[str] = ..., search: _Optional[str] = ..., property: _Optional[str] = ..., most: _Optional[str] = ..., hours: _Optional[str] = ..., window_hours: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("session", "quota")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    session: Session
    quota: Quota
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class DeleteQuotaRequest(_message.Message):
    __slots__ = ("session", "name")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    session: Session
    name: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("uuid", "seen_ms", "failures", "why", "failed_ms", "aside", "state", "since_ms", "missed", "name")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Health.State]
        HEALTHY: _ClassVar[Health.State]
        UNHEALTHY: _ClassVar[Health.State]
    UNKNOWN: Health.State
    HEALTHY: Health.State
    UNHEALTHY: Health.State
    UUID_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FAILED_MS_FIELD_NUMBER: _ClassVar[int]
    ASIDE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    seen_ms: int
    failures: int
    why: str
    failed_ms: int
    aside: bool
    state: Health.State
    since_ms: int
    missed: int
    name: str
    def __init__(self, uuid: _Optional[str] = ..., seen_ms: _Optional[int] = ..., failures: _Optional[int] = ..., why: _Optional[str] = ..., failed_ms: _Optional[int] = ..., aside: bool = ..., state: _Optional[_Union[Health.State, str]] = ..., since_ms: _Optional[int] = ..., missed: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class GetHealthRequest(_message.Message):
    __slots__ = ("session", "uuid")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuid: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuid: _Optional[str] = ...) -> None: ...

class ReportHealthRequest(_message.Message):
    __slots__ = ("session", "uuid", "why")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuid: str
    why: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuid: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ListHealthRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListHealthResponse(_message.Message):
    __slots__ = ("health",)
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    health: _containers.RepeatedCompositeFieldContainer[Health]
    def __init__(self, health: _Optional[_Iterable[_Union[Health, _Mapping]]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Recorded(_message.Message):
    __slots__ = ("changes", "user", "project", "at_ms")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    user: str
    project: str
    at_ms: int
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., user: _Optional[str] = ..., project: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...
