"""Generate the JSON Schema of the configuration language, for editors, from the declarations that the parser uses.

A schema cannot express which names exist and which projects may use them; `headgate check` reports such errors.
"""

from __future__ import annotations

from typing import Any

from headgate.config.drivers import ANY, driver_named
from headgate.config.files.checks import Keys, Schema, object_schema
from headgate.config.keys import objects, tenantfile
from headgate.config.keys.job import CONTROLLED, JOB
from headgate.config.kinds.stanza import TABLES

DRAFT = "http://json-schema.org/draft-07/schema#"


def files() -> Schema:
    """Return the schema of zuul.yaml and the other configuration files of repositories."""
    kinds = {kind: _kind(kind) for kind in objects.KINDS}
    shared = {"nodeset-inline": _nodeset(objects.INLINE_NODESET), "project-pipeline": _section()}
    attributes = _job()
    # In the section of a project, the key of an entry is already the name of the job.
    attributes["properties"].pop("name")
    return _document("Configuration in repositories", kinds, {**shared, "job-attributes": attributes})


def tenants() -> Schema:
    """Return the schema of the tenant file."""
    kinds = {
        "tenant": _tenant(),
        "global-semaphore": object_schema(tenantfile.SEMAPHORE),
        "authorization-rule": object_schema(tenantfile.RULE),
        # The former name of authorization-rule.
        "admin-rule": object_schema(tenantfile.RULE),
        "role": object_schema(tenantfile.ROLE),
        "api-root": object_schema(tenantfile.API_ROOT),
    }
    settings = object_schema(tenantfile.PROJECT)
    entry: Schema = {
        "anyOf": [
            {"type": "string", "description": "A project"},
            {**object_schema(tenantfile.GROUP), "description": "Projects that share settings"},
            {
                "type": "object",
                "additionalProperties": settings,
                "minProperties": 1,
                "maxProperties": 1,
                "description": "A project and its settings",
            },
        ]
    }
    # Groups may be nested, so the schema refers to itself; the declared check accepts any mapping here.
    entry["anyOf"][1]["properties"]["projects"] = _one_or_many(_ref("project-entry"))
    return _document("Tenant file", kinds, {"project-entry": entry})


def _document(title: str, kinds: dict[str, Schema], shared: dict[str, Schema]) -> Schema:
    """Return the schema of a list of mappings, each with one key that names the kind of its value."""
    return {
        "$schema": DRAFT,
        "title": title,
        # The document of an empty file is null.
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "properties": {kind: _ref(kind) for kind in kinds},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
        "definitions": {**kinds, **shared},
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _one_or_many(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one}]}


def _kind(kind: str) -> Schema:
    match kind:
        case "job":
            return {**_job(), "required": ["name"]}
        case "project":
            return _project(objects.PROJECT)
        case "project-template":
            return _project(objects.TEMPLATE)
        case "nodeset":
            return _nodeset(objects.NODESET)
        case "pipeline":
            return _pipeline()
        # The driver of the connection defines further keys, and a schema does not know the connection.
        case "section":
            return {**object_schema(objects.SECTION), "additionalProperties": True}
        case "provider":
            return {**object_schema(objects.PROVIDER), "additionalProperties": True}
        case _:
            return object_schema(TABLES[kind])


def _job() -> Schema:
    found = object_schema(JOB)
    properties = found["properties"]
    for name, key in JOB.items():
        words = [properties[name].get("description", ""), f"Variants: {key.merge.value}" if name != "name" else ""]
        properties[name]["description"] = ". ".join(word for word in words if word)
    properties["nodeset"] = {
        "anyOf": [{"type": "string"}, _ref("nodeset-inline")],
        "description": properties["nodeset"]["description"],
    }
    final: Schema = {"type": "object", "properties": {"final": {"type": "boolean"}}, "additionalProperties": False}
    properties["attribute-control"] |= {
        "properties": {name: final for name in sorted(CONTROLLED)},
        "additionalProperties": False,
    }
    return found


def _nodeset(keys: Keys) -> Schema:
    found = object_schema(keys)
    found["properties"]["alternatives"] |= _one_or_many({"anyOf": [{"type": "string"}, _ref("nodeset-inline")]})
    return found


def _project(keys: Keys) -> Schema:
    """Return the schema of a project, in which every other key is a pipeline."""
    return {**object_schema(keys), "additionalProperties": _ref("project-pipeline")}


def _section() -> Schema:
    found = object_schema(objects.PROJECT_PIPELINE)
    with_attributes = {
        "type": "object",
        "additionalProperties": _ref("job-attributes"),
        "minProperties": 1,
        "maxProperties": 1,
    }
    found["properties"]["jobs"] |= {"type": "array", "items": {"anyOf": [{"type": "string"}, with_attributes]}}
    return found


def _pipeline() -> Schema:
    """Return the schema of a pipeline. It accepts the keys of every driver for every connection, because it does not
    know the connections' drivers."""
    found = object_schema(objects.PIPELINE)
    driver = driver_named(ANY)
    assert driver is not None, "the driver ANY always exists"
    triggers, wanted = object_schema(driver.trigger or {}), object_schema(driver.require or {})
    reporters: Schema = {"anyOf": [{"type": ["object", "null"]}, {"type": "array", "items": {"type": "object"}}]}
    by_connection = {
        "trigger": _one_or_many(triggers),
        "require": wanted,
        "reject": wanted,
        **dict.fromkeys(objects.REPORTERS, reporters),
    }
    for key, schema in by_connection.items():
        found["properties"][key] |= {"type": "object", "additionalProperties": schema}
    return found


def _tenant() -> Schema:
    found = object_schema(tenantfile.TENANT)
    source: dict[str, Any] = object_schema(tenantfile.SOURCE)
    for key in tenantfile.SOURCE:
        source["properties"][key] |= _one_or_many(_ref("project-entry"))
    found["properties"]["source"] |= {"additionalProperties": source}
    return found
