"""Calls of EC2 as Amazon describes them: requests are read, and answers written, by botocore's model of the service."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

Tree = Any
"""A text, a list of trees, or name -> tree."""
Arguments = Mapping[str, Tree]
Record = dict[str, Tree]
Shape = Tree
"""Shape of botocore, which has no type annotations."""
SPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


class Ec2Refusal(Exception):
    """Report an error of EC2."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code, self.status = code, status


class Ec2Calls:
    """Read requests and write answers; what the model does not have fails, whoever said it."""

    def __init__(self) -> None:
        from botocore.loaders import Loader
        from botocore.model import ServiceModel
        from botocore.parsers import EC2QueryParser
        from botocore.validate import ParamValidator

        self._model = ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")
        self._parser, self._validator = EC2QueryParser(), ParamValidator()

    def arguments(self, action: str, body: bytes) -> Record:
        """Return the arguments of a call, by the names that botocore gives them.  Raise Ec2Refusal."""
        pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True)
        shape = self._model.operation_model(action).input_shape
        tree = _tree([(name.split("."), value) for name, value in pairs if name not in ("Action", "Version")])
        found: Record = _read(shape, tree, action)
        report = self._validator.validate(found, shape)
        if report.has_errors():
            raise Ec2Refusal("MissingParameter", f"{action}: {report.generate_report()}")
        return found

    def answer(self, action: str, fields: Arguments) -> bytes:
        """Return the answer of a call as XML, which botocore reads back as it was told."""
        shape = self._model.operation_model(action).output_shape
        root = ElementTree.Element(f"{action}Response", xmlns=SPACE)
        ElementTree.SubElement(root, "requestId").text = "ea966190"
        if shape is not None:
            _write(root, shape, fields)
        body = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        read = self._parser.parse({"status_code": 200, "headers": {}, "body": body}, shape)
        read.pop("ResponseMetadata", None)
        # botocore leaves an empty list out.
        expected = {name: value for name, value in fields.items() if value != []}
        assert {name: value for name, value in read.items() if value != []} == expected, (action, read, fields)
        return bytes(body)


def refusal(error: Ec2Refusal) -> bytes:
    """Return an error in the form that EC2 documents."""
    root = ElementTree.Element("Response")
    one = ElementTree.SubElement(ElementTree.SubElement(root, "Errors"), "Error")
    ElementTree.SubElement(one, "Code").text = error.code
    ElementTree.SubElement(one, "Message").text = str(error)
    ElementTree.SubElement(root, "RequestID").text = "ea966190"
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _tree(pairs: Sequence[tuple[list[str], str]]) -> Tree:
    """Return a text, or name -> subtree."""
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    found: dict[str, list[tuple[list[str], str]]] = {}
    for path, value in pairs:
        if not path:
            raise Ec2Refusal("InvalidParameterCombination", "An argument is said twice.")
        found.setdefault(path[0], []).append((path[1:], value))
    return {name: _tree(below) for name, below in found.items()}


def _read(shape: Shape, value: Tree, where: str) -> Tree:
    if shape.type_name in ("structure", "list") and not isinstance(value, dict):
        raise Ec2Refusal("InvalidParameterValue", f"{where} is no {shape.type_name}")
    if shape.type_name == "structure":
        known = {_wire_name(name, member): (name, member) for name, member in shape.members.items()}
        # Where moto ignores an unknown argument, a wrong name in the driver would go unnoticed.
        if strange := sorted(set(value) - set(known)):
            raise Ec2Refusal("UnknownParameter", f"The parameter {where}.{strange[0]} is not recognized")
        return {known[name][0]: _read(known[name][1], below, f"{where}.{name}") for name, below in value.items()}
    if shape.type_name == "list":
        if sorted(value) != sorted(str(number) for number in range(1, len(value) + 1)):
            raise Ec2Refusal("InvalidParameterValue", f"{where} is not numbered from 1")
        return [_read(shape.member, value[str(number)], f"{where}.{number}") for number in range(1, len(value) + 1)]
    if shape.type_name == "boolean" and value in ("true", "false"):
        return value == "true"
    if shape.type_name in ("integer", "long") and value.isdecimal():
        return int(value)
    if shape.type_name != "string" or (shape.enum and value not in shape.enum):
        raise Ec2Refusal("InvalidParameterValue", f"Value ({value}) for {where} is invalid.")
    return value


def _wire_name(name: str, member: Shape) -> str:
    # EC2's protocol has this rule: `queryName` as it is, any other name with a capital.
    own = member.serialization.get("queryName")
    found = str(own or member.serialization.get("name", name))
    return found if own else found[:1].upper() + found[1:]


def _write(parent: ElementTree.Element, shape: Shape, fields: Arguments) -> None:
    for name, value in fields.items():
        member = shape.members[name]
        element = ElementTree.SubElement(parent, member.serialization.get("name", name))
        if member.type_name == "structure":
            _write(element, member, value)
        elif member.type_name == "list":
            for one in value:
                item = ElementTree.SubElement(element, member.member.serialization.get("name", "item"))
                if member.member.type_name == "structure":
                    _write(item, member.member, one)
                else:
                    item.text = str(one)
        else:
            element.text = str(value).lower() if isinstance(value, bool) else str(value)
