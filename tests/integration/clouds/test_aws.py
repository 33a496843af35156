"""Test features of EC2: images, markets, fleets, quotas, keys, and delayed lists."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from headgate.adapters.nodes.clouds.aws import api
from headgate.adapters.nodes.clouds.aws.api import AwsCredentials, AwsKeySource
from headgate.adapters.nodes.clouds.aws.driver import SEEN_S, Aws, connect
from headgate.adapters.nodes.clouds.aws.query import AwsKeys
from headgate.adapters.nodes.clouds.http import Http
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.base.errors import UserError
from headgate.ports.clouds import CloudUnavailable, LaunchFailed, MachinePending, MachineSpec, OverQuota
from headgate.testing.clouds.aws import ACCESS, REGION, SECRET, AwsGround, aws_ground, call, error, quotas
from headgate.testing.clouds.ground import driving, gone, made, steps
from headgate.testing.servers.faults import Fault, FaultAnswer, Faults, ReceivedRequest, answers, changed, lost


@pytest.fixture
async def ground(s3_server: str) -> AsyncIterator[AwsGround]:
    async with aws_ground(s3_server) as found:
        yield found


@pytest.fixture
async def driver(ground: AwsGround) -> AsyncIterator[Aws]:
    async with driving(ground) as found:
        assert isinstance(found, Aws)
        yield found


def node() -> str:
    return str(uuid.uuid4())


def calls(name: str) -> Callable[[ReceivedRequest], bool]:
    return lambda received: call(received) == name


def instances(ground: AwsGround, wanted: MachineSpec) -> list[Any]:
    every = [one for reservation in ground.backend.reservations.values() for one in reservation.instances]
    return [one for one in every if any(tag["value"] == wanted.node for tag in one.get_tags())]


@pytest.mark.long
async def test_a_node_has_the_attributes_of_its_label_and_flavor(ground: AwsGround, driver: Aws) -> None:
    backend = ground.backend
    subnet = next(iter(next(iter(backend.subnets.values())).values()))
    group = backend.create_security_group("of-nodes", "n", vpc_id=subnet.vpc_id)
    wanted = ground.wanted(
        node(),
        {"subnet-ids": [subnet.id], "security-group-ids": [group.id], "key-name": "ops", "userdata": "#!/bin/sh\né"},
        {"market-type": "spot", "public-ipv4": True, "ebs-optimized": True},
    )
    machine = await made(driver, wanted)
    (there,) = instances(ground, wanted)
    assert (there.subnet_id, there.key_name, there.lifecycle) == (subnet.id, "ops", "spot")
    run = [parse_qs(one.body.decode()) for one in ground.faults.requests if call(one) == "RunInstances"]
    assert run[0]["NetworkInterface.1.SecurityGroupId.1"] == [group.id]
    assert base64.b64decode(run[0]["UserData"][0]).decode() == "#!/bin/sh\né"
    volume = backend.volumes[next(iter(there.block_device_mapping.values())).volume_id]
    assert (volume.size, volume.volume_type) == (12, "gp3")
    assert machine.host is not None and machine.host["ansible_host"] == there.public_ip == machine.about["interface_ip"]
    assert (machine.host["ansible_user"], machine.host["ansible_port"]) == ("admin", 22)
    assert machine.about["private_ipv4"] == there.private_ip and machine.about["az"] == subnet.availability_zone
    assert (machine.about["cloud"], machine.about["region"]) == ("cloudy", REGION)
    assert machine.about["node_properties"] == {"spot": True}
    assert (await driver.uses(wanted))["L-34B43A08"] == 2.0  # t3.micro has two virtual cores


@pytest.mark.long
async def test_of_the_images_that_filters_find_the_newest_is_taken(ground: AwsGround, driver: Aws) -> None:
    dates = {}
    for day in ("2026-01-02", "2026-03-01", "2025-12-31"):
        source = instances(ground, (w := ground.wanted(node())))
        await made(driver, w)
        source = instances(ground, w)[0]
        made_of = ground.backend.create_image(source.id, f"wanted-{w.node}-{day}", "d", tag_specifications=[])
        made_of.creation_date = datetime.fromisoformat(day)
        dates[day] = made_of.id
    wanted = ground.wanted(node())
    filters = [{"name": "name", "values": ["wanted-*"]}]
    wanted = replace(wanted, image={"name": "newest", "image-filters": filters})
    await made(driver, wanted)
    assert instances(ground, wanted)[0].image_id == dates["2026-03-01"]
    request = [one.body.decode() for one in ground.faults.requests if call(one) == "DescribeImages"][-1]
    assert "Owner.1=self" in request, "anybody may give a public image that name"
    for filters in ([], [{"name": "name", "values": ["no-such"]}], [{"name": "name"}], "x"):  # type: ignore[list-item]
        with pytest.raises(LaunchFailed):
            await made(driver, replace(wanted, node=node(), image={"name": "none", "image-filters": filters}))


async def test_an_image_that_became_old_meanwhile_does_not_make_a_second_machine(
    ground: AwsGround, driver: Aws
) -> None:
    wanted = ground.wanted(node())
    state = await steps(driver, wanted, 1)
    ground.faults.once(lost, ground.makes)
    with pytest.raises(CloudUnavailable):
        await driver.advance(wanted, state)
    # Tags are listed late: the existing instance is in no list.
    ground.faults.once(changed(lambda body: body.replace(wanted.node.encode(), b"x" * 36)), ground.lists)
    step = await driver.advance(wanted, state)
    assert isinstance(step, MachinePending) and len(instances(ground, wanted)) == 1
    assert step.state["instance"] == instances(ground, wanted)[0].id
    # Without the state, another image may be chosen: EC2 refuses, and the machine is not forgotten.
    ground.faults.once(changed(lambda body: body.replace(wanted.node.encode(), b"x" * 36)), ground.lists)
    with pytest.raises(CloudUnavailable, match="IdempotentParameterMismatch"):
        await driver.advance(wanted, {**state, "device": "/dev/xvdz"})
    assert (await made(driver, wanted)).external_id == step.state["instance"]


@pytest.mark.long
async def test_an_instance_that_is_not_listed_yet_is_awaited_for_a_limited_time(s3_server: str) -> None:
    async with aws_ground(s3_server) as ground:
        now = [1_000_000.0]
        driver = Aws("c", AwsKeySource(access=ACCESS, secret=SECRET), ground.faults.url, {}, lambda: now[0])
        wanted = ground.wanted(node())
        ground.faults.always(changed(lambda body: body.replace(b"<item>", b"").replace(b"</item>", b"")), ground.lists)
        state = await steps(driver, wanted, 2)
        waiting = await driver.advance(wanted, state)
        assert isinstance(waiting, MachinePending) and waiting.state == state and "yet" in waiting.why
        assert not await driver.remove(wanted, state), "it is there, though it is not listed"
        now[0] += SEEN_S + 1
        with pytest.raises(LaunchFailed, match="does not list"):
            await driver.advance(wanted, state)
        assert await driver.remove(wanted, state)
        await driver.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("reported", "code", "kind"),
    [
        ("terminated", "Server.InsufficientInstanceCapacity", OverQuota),
        ("terminated", "Client.VolumeLimitExceeded", OverQuota),
        ("terminated", "Client.InternalError", LaunchFailed),
        ("shutting-down", "Server.SpotInstanceTermination", LaunchFailed),
        ("stopped", "Client.InstanceInitiatedShutdown", LaunchFailed),
    ],
)
async def test_an_instance_that_died_says_why(
    ground: AwsGround, driver: Aws, reported: str, code: str, kind: type[Exception]
) -> None:
    wanted = ground.wanted(node())
    state = (await made(driver, wanted)).state
    reason = f"<stateReason><code>{code}</code><message>{code}: told</message></stateReason>"
    dead = f"<name>{reported}</name></instanceState>{reason}"

    def died(body: bytes) -> bytes:
        assert b"<name>running</name></instanceState>" in body
        return body.replace(b"<name>running</name></instanceState>", dead.encode())

    ground.faults.once(changed(died), ground.lists)
    with pytest.raises(kind, match=f"is {reported}: {code}: told"):
        await driver.advance(wanted, state)


async def test_a_pending_instance_is_waited_for(ground: AwsGround, driver: Aws) -> None:
    wanted = ground.wanted(node())
    state = (await made(driver, wanted)).state
    ground.faults.once(changed(lambda body: body.replace(b"<name>running<", b"<name>pending<")), ground.lists)
    step = await driver.advance(wanted, state)
    assert isinstance(step, MachinePending) and step.why == "the instance is pending"


FLEET = {
    "fleet": {"instance-types": ["m5.large", "t3.micro"], "allocation-strategy": "lowest-price"},
    "instance-type": None,
}


@pytest.mark.long
async def test_a_fleet_is_one_machine_of_any_of_its_types(ground: AwsGround, driver: Aws) -> None:
    wanted = ground.wanted(node(), flavor=FLEET)
    assert (await driver.uses(wanted))["ram"] == 8192  # the larger one
    ground.faults.once(lost, calls("CreateLaunchTemplate"))
    ground.faults.once(lost, calls("CreateFleet"))
    state: Mapping[str, str] = {}
    losses = 0
    while losses < 2:
        try:
            state = (await driver.advance(wanted, state)).state
        except CloudUnavailable:
            losses += 1
    machine = await made(driver, wanted, state)
    assert [one.id for one in instances(ground, wanted) if one.state != "terminated"] == [machine.external_id]
    there = await ground.everything()
    assert len([one for one in there if one.startswith("lt-")]) == 1
    await gone(driver, wanted, {})
    assert await ground.everything() == {}


@pytest.mark.long
async def test_a_fleet_without_room_says_so(ground: AwsGround, driver: Aws) -> None:
    wanted = ground.wanted(node(), flavor=FLEET)
    errors = "".join(
        f"<item><errorCode>{code}</errorCode><errorMessage>none of {code}</errorMessage></item>"
        for code in ("InsufficientInstanceCapacity", "VcpuLimitExceeded")
    )
    body = f"<A><fleetId>f-1</fleetId><errorSet>{errors}</errorSet><fleetInstanceSet/></A>"
    ground.faults.once(answers(200, body.encode()), calls("CreateFleet"))
    with pytest.raises(OverQuota, match="none of VcpuLimitExceeded"):
        await made(driver, wanted)
    ground.faults.once(answers(200, body.replace("Vcpu", "Un").encode()), calls("CreateFleet"))
    with pytest.raises(OverQuota):
        await made(driver, wanted)
    ground.faults.once(answers(200, body.replace("VcpuLimitExceeded", "Odd").encode()), calls("CreateFleet"))
    with pytest.raises(LaunchFailed, match="Odd"):
        await made(driver, wanted)
    await gone(driver, wanted, {})
    assert await ground.everything() == {}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (error(400, "VcpuLimitExceeded", "t"), OverQuota),
        (error(400, "InstanceLimitExceeded", "t"), OverQuota),
        (error(400, "MaxSpotInstanceCountExceeded", "t"), OverQuota),
        (error(503, "InsufficientInstanceCapacity", "t"), OverQuota),
        (error(503, "RequestLimitExceeded", "t"), CloudUnavailable),
        (error(400, "Throttling", "t"), CloudUnavailable),
        (error(503, "Unavailable", "t"), CloudUnavailable),
        (error(400, "PendingVerification", "t"), LaunchFailed),
        (error(403, "UnauthorizedOperation", "t"), LaunchFailed),
        (answers(502, b"<html>bad gateway</html>"), CloudUnavailable),
        (answers(200, b"<html>a captive portal"), CloudUnavailable),
        (answers(200, b""), CloudUnavailable),
        (answers(301, b"", {"location": "http://elsewhere/"}), CloudUnavailable),
    ],
)
async def test_errors_are_distinguished(ground: AwsGround, driver: Aws, fault: Fault, kind: type[Exception]) -> None:
    ground.faults.once(fault, ground.makes)
    with pytest.raises(kind) as raised:
        await made(driver, ground.wanted(node()))
    assert type(raised.value) is kind or kind in (CloudUnavailable, LaunchFailed)


@pytest.mark.long
async def test_lists_have_many_pages_and_one_that_is_missing_is_seen(
    ground: AwsGround, driver: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await made(driver, ground.wanted(node()))
    mine = {name for name in await ground.everything() if name.startswith("i-")}
    monkeypatch.setattr(api.Ec2.every, "__defaults__", (None, 1))
    before = ground.faults.count(ground.lists)
    assert mine <= {one.id for one in await driver.resources(ground.provider)}
    assert ground.faults.count(ground.lists) - before >= 3
    ground.faults.once(
        answers(200, b"<DescribeInstancesResponse/>"), lambda a: ground.lists(a) and b"NextToken" in a.body
    )
    with pytest.raises(CloudUnavailable):
        await driver.resources(ground.provider)


async def test_quotas_that_aws_reports_are_limits(ground: AwsGround, driver: Aws) -> None:
    assert await driver.limits(ground.provider) == {}, "moto has no Service Quotas: no limit"

    def about(received: ReceivedRequest) -> bool:
        return "ServiceQuotas" in str(received.headers)

    ground.faults.once(quotas({"L-1216C47A": 32.0, "L-0000": 5.0}), about)
    assert await driver.limits(ground.provider) == {"L-1216C47A": 32.0}
    denied = json.dumps({"__type": "AccessDeniedException", "Message": "no"}).encode()
    ground.faults.once(answers(400, denied), about)
    assert await driver.limits(ground.provider) == {}
    busy = json.dumps({"__type": "TooManyRequestsException", "Message": "no"}).encode()
    ground.faults.once(answers(429, busy, {"retry-after": "3"}), about)
    with pytest.raises(CloudUnavailable):
        await driver.limits(ground.provider)


async def test_expired_keys_are_replaced_immediately(ground: AwsGround, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"[ci]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")
    driver = Aws(
        "c", AwsKeySource(file=str(file), profile="ci", role="arn:aws:iam::123456789012:role/ci"), ground.faults.url, {}
    )
    await driver.resources(ground.provider)
    ground.faults.once(error(400, "ExpiredToken", "The provided token has expired."), ground.lists)
    await driver.resources(ground.provider)
    assert ground.faults.count(calls("AssumeRole")) == 2
    await driver.close()


CASES: list[tuple[AwsKeySource, dict[str, str], str]] = [
    (
        AwsKeySource(access="AKS", secret="hidden-s"),
        {"AWS_ACCESS_KEY_ID": "AKE", "AWS_SECRET_ACCESS_KEY": "hidden-e"},
        "AKS",
    ),
    (AwsKeySource(), {"AWS_ACCESS_KEY_ID": "AKE", "AWS_SECRET_ACCESS_KEY": "hidden-e"}, "AKE"),
    (AwsKeySource(), {"AWS_PROFILE": "other"}, "AKO"),
    (AwsKeySource(), {}, "AKD"),
    (AwsKeySource(profile="other"), {"AWS_ACCESS_KEY_ID": "AKE", "AWS_SECRET_ACCESS_KEY": "hidden-e"}, "AKO"),
    (AwsKeySource(role="arn:aws:iam::1:role/ci"), {}, "AKLENT"),
    (AwsKeySource(), {"AWS_WEB_IDENTITY_TOKEN_FILE": "TOKEN", "AWS_ROLE_ARN": "arn:aws:iam::1:role/ci"}, "AKLENT"),
    (
        AwsKeySource(),
        {"AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL/c"},
        "AKCONTAINER",
    ),
    (AwsKeySource(), {"AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "URL"}, "AKMACHINE"),
]


@pytest.mark.parametrize(("source", "env", "access"), CASES)
async def test_keys_are_found_where_amazons_own_tools_find_them(
    source: AwsKeySource, env: dict[str, str], access: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a-web-identity\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=AKD\naws_secret_access_key=hidden-d%1\n[other]\naws_access_key_id=AKO\n"
        "aws_secret_access_key=hidden-o\naws_session_token=t\n"
    )
    async with Faults("http://127.0.0.1:9").serving() as faults:
        faults.always(_lender)
        env = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")} | {
            name: value.replace("URL", faults.url).replace("TOKEN", str(tmp_path / "token"))
            for name, value in env.items()
        }
        http, now = Http(), [1_700_000_000.0]
        found = AwsCredentials(http, source, f"{faults.url}/", "eu-west-1", env, lambda: now[0])
        keys = await found.keys()
        assert keys.access == access and keys.secret.startswith("hidden") and "hidden" not in f"{keys}{source}"
        count = len(faults.requests)
        assert await found.keys() == keys and len(faults.requests) == count
        now[0] = keys.until_s - 60 if keys.until_s < 1e12 else now[0]
        await found.keys()
        assert (len(faults.requests) > count) == (count > 0), "lent keys are replaced before they end"
        await http.close()


async def _lender(received: ReceivedRequest, go_on: object) -> FaultAnswer:
    lent = {"SecretAccessKey": "hidden-s", "Token": "t", "Expiration": "2023-11-15T00:00:00Z"}
    if received.method == "POST":
        name = call(received)
        assert ("a-web-identity" in received.body.decode()) == (name == "AssumeRoleWithWebIdentity")
        inner = (
            "<AccessKeyId>AKLENT</AccessKeyId><SecretAccessKey>hidden-s</SecretAccessKey><SessionToken>t</SessionToken>"
        )
        until = "<Expiration>2023-11-15T00:00:00Z</Expiration>"
        text = (
            f"<{name}Response><{name}Result><Credentials>{inner}{until}</Credentials></{name}Result></{name}Response>"
        )
        return FaultAnswer(200, text.encode(), {})
    if received.path == "/c":
        return FaultAnswer(200, json.dumps({"AccessKeyId": "AKCONTAINER", **lent}).encode(), {})
    if received.method == "PUT":
        return FaultAnswer(200, b"a-session", {})
    assert received.headers["x-aws-ec2-metadata-token"] == "a-session", "the second version of the service"
    if received.path.endswith("/security-credentials/"):
        return FaultAnswer(200, b"builders\n", {})
    assert received.path.endswith("/builders")
    return FaultAnswer(200, json.dumps({"AccessKeyId": "AKMACHINE", **lent}).encode(), {})


async def test_keys_are_requested_from_remote_servers_only_by_tls_and_missing_ones_are_named(tmp_path: Path) -> None:
    none = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    for source, env, message in (
        (AwsKeySource(), {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.org/c"}, "without TLS"),
        (AwsKeySource(file=str(tmp_path / "none")), {}, "cannot be read"),
        (AwsKeySource(role="r", web_identity=str(tmp_path / "none")), {}, "cannot be read"),
        (AwsKeySource(), {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}, "this machine has no role"),
    ):
        http = Http()
        with pytest.raises(CloudUnavailable, match=message):
            await AwsCredentials(http, source, "http://127.0.0.1:9/", "r", none | env, lambda: 0.0).keys()
        await http.close()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"access_key_id": "A"}, "go together"),
        ({"web_identity_token_file": "t"}, "needs role_arn"),
    ],
)
def test_incomplete_credentials_of_a_connection_are_an_error(
    section: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        connect(CloudDriverOptions("c", section, tmp_path))


def test_files_of_keys_are_in_the_directory_of_the_settings(tmp_path: Path) -> None:
    driver = connect(
        CloudDriverOptions("c", {"shared_credentials_file": "keys", "endpoint_url": "http://h:1/"}, tmp_path)
    )
    assert str(tmp_path / "keys") in repr(vars(driver))


async def test_a_region_is_a_name_and_no_part_of_an_address(driver: Aws) -> None:
    for region in ("", "evil.example/", "a@b", "x#"):
        with pytest.raises(CloudUnavailable, match="region"):
            await driver.resources({"region": region})
    assert AwsKeys("a", "s", "t").secret == "s"
