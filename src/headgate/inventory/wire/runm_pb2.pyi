from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SortDirection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASC: _ClassVar[SortDirection]
    DESC: _ClassVar[SortDirection]

class ObjectTypeScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITION: _ClassVar[ObjectTypeScope]
    PROJECT: _ClassVar[ObjectTypeScope]
ASC: SortDirection
DESC: SortDirection
PARTITION: ObjectTypeScope
PROJECT: ObjectTypeScope

class Session(_message.Message):
    __slots__ = ("user", "project", "partition")
    USER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    user: str
    project: str
    partition: str
    def __init__(self, user: _Optional[str] = ..., project: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class SortField(_message.Message):
    __slots__ = ("field", "direction")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    direction: SortDirection
    def __init__(self, field: _Optional[str] = ..., direction: _Optional[_Union[SortDirection, str]] = ...) -> None: ...

class SearchOptions(_message.Message):
    __slots__ = ("limit", "marker", "sort_fields")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    limit: int
    marker: str
    sort_fields: _containers.RepeatedCompositeFieldContainer[SortField]
    def __init__(self, limit: _Optional[int] = ..., marker: _Optional[str] = ..., sort_fields: _Optional[_Iterable[_Union[SortField, _Mapping]]] = ...) -> None: ...

class UuidFilter(_message.Message):
    __slots__ = ("uuid", "use_prefix")
    UUID_FIELD_NUMBER: _ClassVar[int]
    USE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    use_prefix: bool
    def __init__(self, uuid: _Optional[str] = ..., use_prefix: bool = ...) -> None: ...

class UuidsFilter(_message.Message):
    __slots__ = ("uuids",)
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class NameFilter(_message.Message):
    __slots__ = ("name", "use_prefix")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    name: str
    use_prefix: bool
    def __init__(self, name: _Optional[str] = ..., use_prefix: bool = ...) -> None: ...

class CodeFilter(_message.Message):
    __slots__ = ("code", "use_prefix")
    CODE_FIELD_NUMBER: _ClassVar[int]
    USE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    code: str
    use_prefix: bool
    def __init__(self, code: _Optional[str] = ..., use_prefix: bool = ...) -> None: ...

class CodesFilter(_message.Message):
    __slots__ = ("codes",)
    CODES_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, codes: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchFilter(_message.Message):
    __slots__ = ("search", "use_prefix")
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    USE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    search: str
    use_prefix: bool
    def __init__(self, search: _Optional[str] = ..., use_prefix: bool = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("num_deleted",)
    NUM_DELETED_FIELD_NUMBER: _ClassVar[int]
    num_deleted: int
    def __init__(self, num_deleted: _Optional[int] = ...) -> None: ...

class Property(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class PropertyPermission(_message.Message):
    __slots__ = ("project", "role", "permission")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    project: str
    role: str
    permission: int
    def __init__(self, project: _Optional[str] = ..., role: _Optional[str] = ..., permission: _Optional[int] = ...) -> None: ...

class PropertyPermissions(_message.Message):
    __slots__ = ("key", "permissions")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    key: str
    permissions: _containers.RepeatedCompositeFieldContainer[PropertyPermission]
    def __init__(self, key: _Optional[str] = ..., permissions: _Optional[_Iterable[_Union[PropertyPermission, _Mapping]]] = ...) -> None: ...

class PropertyFilter(_message.Message):
    __slots__ = ("require_items", "require_keys", "forbid_items", "forbid_keys", "any_items", "any_keys")
    REQUIRE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_KEYS_FIELD_NUMBER: _ClassVar[int]
    FORBID_ITEMS_FIELD_NUMBER: _ClassVar[int]
    FORBID_KEYS_FIELD_NUMBER: _ClassVar[int]
    ANY_ITEMS_FIELD_NUMBER: _ClassVar[int]
    ANY_KEYS_FIELD_NUMBER: _ClassVar[int]
    require_items: _containers.RepeatedCompositeFieldContainer[Property]
    require_keys: _containers.RepeatedScalarFieldContainer[str]
    forbid_items: _containers.RepeatedCompositeFieldContainer[Property]
    forbid_keys: _containers.RepeatedScalarFieldContainer[str]
    any_items: _containers.RepeatedCompositeFieldContainer[Property]
    any_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, require_items: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., require_keys: _Optional[_Iterable[str]] = ..., forbid_items: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., forbid_keys: _Optional[_Iterable[str]] = ..., any_items: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., any_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("uuid", "name")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class PartitionFindFilter(_message.Message):
    __slots__ = ("uuid_filter", "name_filter")
    UUID_FILTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FILTER_FIELD_NUMBER: _ClassVar[int]
    uuid_filter: UuidFilter
    name_filter: NameFilter
    def __init__(self, uuid_filter: _Optional[_Union[UuidFilter, _Mapping]] = ..., name_filter: _Optional[_Union[NameFilter, _Mapping]] = ...) -> None: ...

class PartitionGetByUuidRequest(_message.Message):
    __slots__ = ("session", "uuid")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuid: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuid: _Optional[str] = ...) -> None: ...

class PartitionGetByNameRequest(_message.Message):
    __slots__ = ("session", "name")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    session: Session
    name: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class PartitionFindRequest(_message.Message):
    __slots__ = ("session", "options", "any")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    options: SearchOptions
    any: _containers.RepeatedCompositeFieldContainer[PartitionFindFilter]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., options: _Optional[_Union[SearchOptions, _Mapping]] = ..., any: _Optional[_Iterable[_Union[PartitionFindFilter, _Mapping]]] = ...) -> None: ...

class PartitionCreateRequest(_message.Message):
    __slots__ = ("session", "partition")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition: Partition
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class PartitionCreateResponse(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class ObjectType(_message.Message):
    __slots__ = ("code", "description", "scope")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    code: str
    description: str
    scope: ObjectTypeScope
    def __init__(self, code: _Optional[str] = ..., description: _Optional[str] = ..., scope: _Optional[_Union[ObjectTypeScope, str]] = ...) -> None: ...

class ObjectTypeFilter(_message.Message):
    __slots__ = ("code_filter",)
    CODE_FILTER_FIELD_NUMBER: _ClassVar[int]
    code_filter: CodeFilter
    def __init__(self, code_filter: _Optional[_Union[CodeFilter, _Mapping]] = ...) -> None: ...

class ObjectTypeGetByCodeRequest(_message.Message):
    __slots__ = ("session", "code")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    code: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., code: _Optional[str] = ...) -> None: ...

class ObjectTypeFindRequest(_message.Message):
    __slots__ = ("session", "options", "any")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    options: SearchOptions
    any: _containers.RepeatedCompositeFieldContainer[ObjectTypeFilter]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., options: _Optional[_Union[SearchOptions, _Mapping]] = ..., any: _Optional[_Iterable[_Union[ObjectTypeFilter, _Mapping]]] = ...) -> None: ...

class ProviderType(_message.Message):
    __slots__ = ("code", "description")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    code: str
    description: str
    def __init__(self, code: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class ProviderTypeFindFilter(_message.Message):
    __slots__ = ("code_filter",)
    CODE_FILTER_FIELD_NUMBER: _ClassVar[int]
    code_filter: CodeFilter
    def __init__(self, code_filter: _Optional[_Union[CodeFilter, _Mapping]] = ...) -> None: ...

class ProviderTypeGetByCodeRequest(_message.Message):
    __slots__ = ("session", "code")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    code: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., code: _Optional[str] = ...) -> None: ...

class ProviderTypeFindRequest(_message.Message):
    __slots__ = ("session", "options", "any")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    options: SearchOptions
    any: _containers.RepeatedCompositeFieldContainer[ProviderTypeFindFilter]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., options: _Optional[_Union[SearchOptions, _Mapping]] = ..., any: _Optional[_Iterable[_Union[ProviderTypeFindFilter, _Mapping]]] = ...) -> None: ...

class Object(_message.Message):
    __slots__ = ("partition", "object_type", "project", "uuid", "name", "properties", "tags")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    partition: str
    object_type: str
    project: str
    uuid: str
    name: str
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, partition: _Optional[str] = ..., object_type: _Optional[str] = ..., project: _Optional[str] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class ObjectFilter(_message.Message):
    __slots__ = ("partition_filter", "object_type_filter", "uuid_filter", "name_filter", "project", "property_filter")
    PARTITION_FILTER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_FILTER_FIELD_NUMBER: _ClassVar[int]
    UUID_FILTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FILTER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_FILTER_FIELD_NUMBER: _ClassVar[int]
    partition_filter: UuidsFilter
    object_type_filter: ObjectTypeFilter
    uuid_filter: UuidFilter
    name_filter: NameFilter
    project: str
    property_filter: PropertyFilter
    def __init__(self, partition_filter: _Optional[_Union[UuidsFilter, _Mapping]] = ..., object_type_filter: _Optional[_Union[ObjectTypeFilter, _Mapping]] = ..., uuid_filter: _Optional[_Union[UuidFilter, _Mapping]] = ..., name_filter: _Optional[_Union[NameFilter, _Mapping]] = ..., project: _Optional[str] = ..., property_filter: _Optional[_Union[PropertyFilter, _Mapping]] = ...) -> None: ...

class ObjectGetByUuidRequest(_message.Message):
    __slots__ = ("session", "uuid")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuid: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuid: _Optional[str] = ...) -> None: ...

class ObjectGetByNameRequest(_message.Message):
    __slots__ = ("session", "partition_uuid", "object_type_code", "project", "name")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_UUID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_TYPE_CODE_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition_uuid: str
    object_type_code: str
    project: str
    name: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition_uuid: _Optional[str] = ..., object_type_code: _Optional[str] = ..., project: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ObjectCreateRequest(_message.Message):
    __slots__ = ("session", "object")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    session: Session
    object: Object
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., object: _Optional[_Union[Object, _Mapping]] = ...) -> None: ...

class ObjectCreateResponse(_message.Message):
    __slots__ = ("object",)
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    object: Object
    def __init__(self, object: _Optional[_Union[Object, _Mapping]] = ...) -> None: ...

class ObjectFindRequest(_message.Message):
    __slots__ = ("session", "options", "any")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    session: Session
    options: SearchOptions
    any: _containers.RepeatedCompositeFieldContainer[ObjectFilter]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., options: _Optional[_Union[SearchOptions, _Mapping]] = ..., any: _Optional[_Iterable[_Union[ObjectFilter, _Mapping]]] = ...) -> None: ...

class ObjectDeleteByUuidsRequest(_message.Message):
    __slots__ = ("session", "uuids")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    session: Session
    uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class ObjectDefinition(_message.Message):
    __slots__ = ("uuid", "schema", "property_permissions")
    UUID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    schema: str
    property_permissions: _containers.RepeatedCompositeFieldContainer[PropertyPermissions]
    def __init__(self, uuid: _Optional[str] = ..., schema: _Optional[str] = ..., property_permissions: _Optional[_Iterable[_Union[PropertyPermissions, _Mapping]]] = ...) -> None: ...

class ObjectDefinitionSetResponse(_message.Message):
    __slots__ = ("object_definition",)
    OBJECT_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    object_definition: ObjectDefinition
    def __init__(self, object_definition: _Optional[_Union[ObjectDefinition, _Mapping]] = ...) -> None: ...

class ProviderDefinitionGetGlobalDefaultRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ProviderDefinitionGetByPartitionRequest(_message.Message):
    __slots__ = ("session", "partition_uuid")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_UUID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition_uuid: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition_uuid: _Optional[str] = ...) -> None: ...

class ProviderDefinitionGetByTypeRequest(_message.Message):
    __slots__ = ("session", "provider_type_code")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_TYPE_CODE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    provider_type_code: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., provider_type_code: _Optional[str] = ...) -> None: ...

class ProviderDefinitionGetByPartitionAndTypeRequest(_message.Message):
    __slots__ = ("session", "partition_uuid", "provider_type_code")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_UUID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_TYPE_CODE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition_uuid: str
    provider_type_code: str
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition_uuid: _Optional[str] = ..., provider_type_code: _Optional[str] = ...) -> None: ...

class ProviderObjectDefinitionSetRequest(_message.Message):
    __slots__ = ("session", "partition_uuid", "provider_type_code", "object_definition")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_UUID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_TYPE_CODE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    partition_uuid: str
    provider_type_code: str
    object_definition: ObjectDefinition
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., partition_uuid: _Optional[str] = ..., provider_type_code: _Optional[str] = ..., object_definition: _Optional[_Union[ObjectDefinition, _Mapping]] = ...) -> None: ...
