"""Read and answer calls of EC2 and EBS by botocore's model of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

from headgate.testing.servers.faults import FaultAnswer, ReceivedRequest

Tree = Any
"""A string, a list of trees, or name -> tree."""
Arguments = Mapping[str, Tree]
Record = dict[str, Tree]
Shape = Tree
"""Shape of botocore, which has no type annotations."""
SPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
"""XML namespace of EC2."""
BLOCK = 2**19
"""Size of a block of a snapshot, in bytes."""
_PATHS = {
    "StartSnapshot": ("POST", re.compile(r"/snapshots")),
    "PutSnapshotBlock": ("PUT", re.compile(r"/snapshots/(?P<SnapshotId>snap-\w+)/blocks/(?P<BlockIndex>\d+)")),
    "CompleteSnapshot": ("POST", re.compile(r"/snapshots/completion/(?P<SnapshotId>snap-\w+)")),
}
"""Call of EBS -> its method and path."""


class _AwsRefusal(Exception):
    """Report an error of AWS."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code, self.status = code, status


class Ec2Refusal(_AwsRefusal):
    """Report an error of EC2."""


class EbsRefusal(_AwsRefusal):
    """Report an error of EBS."""


class Ec2Calls:
    """Read requests of EC2 and write answers; both fail on fields that the model does not have."""

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
        """Return the answer of a call as XML, which botocore reads back as these fields."""
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
    """Return a string, or name -> subtree."""
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    found: dict[str, list[tuple[list[str], str]]] = {}
    for path, value in pairs:
        if not path:
            raise Ec2Refusal("InvalidParameterCombination", "An argument is given twice.")
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


class SnapshotStore(Protocol):
    """Hold the snapshots of EC2."""

    snapshots: dict[str, Record]
    contents: dict[str, str]

    def has_snapshot(self, content: bytes, owner: str = ..., **fields: object) -> str:
        """Add a snapshot; return its id."""
        ...


@dataclass
class EbsCalls:
    """Answer calls of EBS, which write snapshots."""

    ec2: SnapshotStore
    slow: int = 0
    """Number of times that a snapshot is read before it is stored."""
    blocks: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Snapshot that is being written -> its blocks."""

    def __post_init__(self) -> None:
        from botocore.loaders import Loader
        from botocore.model import ServiceModel
        from botocore.parsers import RestJSONParser
        from botocore.validate import ParamValidator

        self._model = ServiceModel(Loader().load_service_model("ebs", "service-2"), "ebs")
        self._parser, self._validator = RestJSONParser(), ParamValidator()

    def answer(self, request: ReceivedRequest) -> FaultAnswer | None:
        """Return the answer of EBS; None: the call is not one of EBS."""
        for action, (method, path) in _PATHS.items():
            if request.method == method and (found := path.fullmatch(request.path)):
                try:
                    return self._response(
                        action, self._does(action, self._arguments(action, request, found.groupdict()))
                    )
                except EbsRefusal as error:
                    body = json.dumps({"Message": str(error), "Reason": "INVALID_BLOCK"}).encode()
                    return FaultAnswer(error.status, body, {"x-amzn-errortype": f"{error.code}Exception:http://x/"})
        return None

    def _arguments(self, action: str, request: ReceivedRequest, places: Arguments) -> Record:
        shape = self._model.operation_model(action).input_shape
        headers = {name.lower(): value for name, value in request.headers.items()}
        found: Record = dict(places)
        for name, member in shape.members.items():
            header = str(member.serialization.get("name", "")).lower()
            if member.serialization.get("location") == "header" and header in headers:
                found[name] = headers[header]
        payload = shape.serialization.get("payload")
        found |= {payload: request.body} if payload else json.loads(request.body or b"{}")
        arguments = {n: int(v) if shape.members[n].type_name == "integer" else v for n, v in found.items()}
        report = self._validator.validate(arguments, shape)
        if report.has_errors():
            raise EbsRefusal("Validation", report.generate_report())
        return arguments

    def _response(self, action: str, answer: Record) -> FaultAnswer:
        operation, body = self._model.operation_model(action), json.dumps(answer).encode()
        read = self._parser.parse({"status_code": 200, "headers": {}, "body": body}, operation.output_shape)
        # botocore reads the answer back, so the model cannot answer what Amazon's own client would not understand.
        assert {name: value for name, value in read.items() if name != "ResponseMetadata"} == answer, (action, read)
        return FaultAnswer(operation.http["responseCode"], body, {"content-type": "application/json"})

    def _does(self, action: str, arguments: Arguments) -> Record:
        if action == "StartSnapshot":
            id = self.ec2.has_snapshot(b"", State="pending", VolumeSize=arguments["VolumeSize"], Tags=arguments["Tags"])
            self.blocks[id] = {}
            return {"SnapshotId": id, "Status": "pending", "VolumeSize": arguments["VolumeSize"], "BlockSize": BLOCK}
        blocks = self.blocks.get(arguments["SnapshotId"])
        if blocks is None or arguments["SnapshotId"] not in self.ec2.snapshots:
            raise EbsRefusal("ResourceNotFound", f"The snapshot {arguments['SnapshotId']} is not being written", 404)
        return self._put(blocks, arguments) if action == "PutSnapshotBlock" else self._complete(blocks, arguments)

    def _put(self, blocks: dict[int, bytes], arguments: Arguments) -> Record:
        data = arguments["BlockData"]
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        if len(data) != BLOCK or arguments["DataLength"] != BLOCK or arguments["Checksum"] != checksum:
            raise EbsRefusal("Validation", "A block has 524288 bytes, and the checksum of these")
        if arguments["BlockIndex"] >= self.ec2.snapshots[arguments["SnapshotId"]]["VolumeSize"] * 2**30 // BLOCK:
            raise EbsRefusal("Validation", "The block is outside of the volume")
        blocks[arguments["BlockIndex"]] = data
        return {}

    def _complete(self, blocks: dict[int, bytes], arguments: Arguments) -> Record:
        # EBS rejects this too, so a driver cannot complete a snapshot that lacks a block.
        if arguments["ChangedBlocksCount"] != len(blocks):
            raise EbsRefusal("Validation", f"{len(blocks)} blocks were written")
        content = b"".join(blocks.get(number, bytes(BLOCK)) for number in range(max(blocks, default=-1) + 1))
        del self.blocks[arguments["SnapshotId"]]
        # Without the zeros at the end: a snapshot has whole blocks and does not know how long the file was.
        self.ec2.contents[arguments["SnapshotId"]] = hashlib.sha256(content.rstrip(b"\0")).hexdigest()
        snapshot = self.ec2.snapshots[arguments["SnapshotId"]]
        snapshot["State"] = "pending" if self.slow else "completed"
        return {"Status": "pending"}

    def goes_on(self) -> None:
        """Store what was written."""
        self.slow -= 1
        for id, snapshot in self.ec2.snapshots.items():
            if snapshot["State"] == "pending" and id not in self.blocks and self.slow < 0:
                snapshot["State"] = "completed"
