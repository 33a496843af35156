"""The direct calls of EBS, modelled: snapshots that are written a block at a time, held to botocore's model."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Protocol

from headgate.testing.clouds.ec2calls import Arguments, Record
from headgate.testing.servers.faults import FaultAnswer, ReceivedRequest

BLOCK = 2**19
_PATHS = {
    "StartSnapshot": ("POST", re.compile(r"/snapshots")),
    "PutSnapshotBlock": ("PUT", re.compile(r"/snapshots/(?P<SnapshotId>snap-\w+)/blocks/(?P<BlockIndex>\d+)")),
    "CompleteSnapshot": ("POST", re.compile(r"/snapshots/completion/(?P<SnapshotId>snap-\w+)")),
}


class SnapshotStore(Protocol):
    """Hold the snapshots of EC2."""

    snapshots: dict[str, Record]
    contents: dict[str, str]

    def has_snapshot(self, content: bytes, owner: str = ..., **fields: object) -> str:
        """Have a snapshot; return its id."""
        ...


class EbsRefusal(Exception):
    """Report an error of EBS."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code, self.status = code, status


@dataclass
class EbsCalls:
    """Write snapshots."""

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
        """Return the answer of EBS; None: it is no call of EBS."""
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
