"""Make machines on AWS EC2, in steps of one or two calls that can be repeated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.adapters.nodes.clouds.aws import launch
from headgate.adapters.nodes.clouds.aws.api import GONE, AwsCredentials, AwsKeySource, AwsService, Ec2
from headgate.adapters.nodes.clouds.aws.images import AwsImages
from headgate.adapters.nodes.clouds.aws.imports import bucket_name
from headgate.adapters.nodes.clouds.aws.query import FULL, AwsRefused, listed, tags_of
from headgate.adapters.nodes.clouds.aws.uploads import Blocks, Bucket, bucket_address
from headgate.adapters.nodes.clouds.description import addresses, host, number
from headgate.adapters.nodes.clouds.http import Http, understood
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.base.errors import UserError
from headgate.ports import clouds

SEEN_S = 600.0
"""Time within which a new instance must appear in lists; after that, a missing instance no longer exists."""


def connect(given: CloudDriverOptions) -> Aws:
    """Return the account that a connection names."""
    options = given.options

    def file(name: str) -> str:
        return str(given.directory / Path(options[name]).expanduser()) if options.get(name) else ""

    if bool(options.get("access_key_id")) != bool(options.get("secret_access_key")):
        raise UserError("access_key_id and secret_access_key go together")
    source = AwsKeySource(
        access=options.get("access_key_id", ""),
        secret=options.get("secret_access_key", ""),
        file=file("shared_credentials_file"),
        profile=options.get("profile", ""),
        role=options.get("role_arn", ""),
        web_identity=file("web_identity_token_file"),
    )
    if source.web_identity and not source.role:
        raise UserError("web_identity_token_file needs role_arn, the role to assume with the token")
    return Aws(given.name, source, options.get("endpoint_url", ""))


class Stays(clouds.LaunchFailed):
    """Report that AWS refuses to delete a resource."""


class Aws:
    """Drive one account; each region is called separately."""

    def __init__(
        self,
        name: str,
        source: AwsKeySource,
        endpoint: str = "",
        env: Mapping[str, str] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Drive AWS for the connection `name`; `endpoint`: URL of a server that replaces all services of AWS."""
        self.name = name
        self._source, self._endpoint, self._now_s = source, endpoint.rstrip("/"), now_s
        self._env = os.environ if env is None else env
        self._http = Http()
        self._regions: dict[str, Ec2] = {}
        self.images = AwsImages(self._at, self._bucket, self._blocks, now_s)

    def _at(self, provider: Mapping[str, Any]) -> Ec2:
        region = str(provider.get("region") or "")
        # The region becomes part of the host name: with a dot or a slash, signed requests would go to another server.
        if not region.replace("-", "").isalnum():
            raise clouds.LaunchFailed(
                "the provider has no region" if not region else f"{region!r:.80} is not a region of AWS"
            )
        # One `Ec2` for each region, because all nodes share its lists (`Shared`).
        if region not in self._regions:
            urls = {service: self._url(service, region) for service in ("ec2", "sts", "servicequotas")}
            keys = AwsCredentials(self._http, self._source, urls["sts"], region, self._env, self._now_s)
            self._regions[region] = Ec2(self._http, keys, region, urls["ec2"], urls["servicequotas"])
        return self._regions[region]

    def _bucket(self, provider: Mapping[str, Any]) -> Bucket | None:
        """Return the bucket of a provider; None if it has none."""
        name = bucket_name(provider)
        if not name:
            return None
        service, url = self._service(provider, "s3")
        return Bucket(service, name, bucket_address(url, name, is_path=bool(self._endpoint)))

    def _blocks(self, provider: Mapping[str, Any]) -> Blocks:
        return Blocks(*self._service(provider, "ebs"))

    def _service(self, provider: Mapping[str, Any], name: str) -> tuple[AwsService, str]:
        """Return a service of AWS in the region of a provider, and its address."""
        ec2 = self._at(provider)
        return AwsService(self._http, ec2.credentials, ec2.region, name), self._url(name, ec2.region)

    def _url(self, service: str, region: str) -> str:
        if self._endpoint:
            return f"{self._endpoint}/"
        return f"https://{service}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}/"

    @understood
    async def uses(self, wanted: clouds.MachineSpec) -> clouds.Amounts:
        types = launch.types(wanted)
        sizes = await self._at(wanted.provider).sizes(types)
        if missing := [one for one in types if one not in sizes]:
            raise clouds.LaunchFailed(f"AWS has no instance type {missing[0]} in {wanted.provider.get('region')}")
        found = dict[str, float]()
        for one in types:
            for kind, amount in launch.uses(one, *sizes[one], launch.spot(wanted)).items():
                # It is unknown which type a fleet will choose, so the largest amount of each kind is reserved.
                found[kind] = max(found.get(kind, 0.0), amount)
        size = number(wanted, "volume-size")
        return {**found, "volumes": 1.0} | ({"volume-gb": float(size)} if size else {})

    @understood
    async def advance(self, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending | clouds.Made:
        ec2 = self._at(wanted.provider)
        every = await ec2.ours()
        instances = [instance for instance in every.values() if tags_of(instance).get(clouds.NODE_TAG) == wanted.node]
        # An instance from a call whose response was lost has the node's tag. `min` prefers a live one, because False
        # sorts before True.
        known = every.get(state.get("instance", "")) or min(instances, key=_is_gone, default=None)
        if known is not None:
            return self._look(wanted, state, known)
        # EC2's lists lag behind its calls; a new instance may be missing for a while.
        if "instance" in state:
            if self._now_s() - float(state.get("asked", 0)) > SEEN_S:
                raise clouds.LaunchFailed(
                    f"AWS does not list the instance {state['instance']}, although it reported that it made it"
                )
            return clouds.MachinePending(state, f"AWS does not list the instance {state['instance']} yet")
        if "image" not in state:
            return await self._choose(ec2, wanted)
        if "fleet" in wanted.flavor and "template" not in state:
            return await self._describe(ec2, wanted, state)
        return await self._run(ec2, wanted, state)

    async def _choose(self, ec2: Ec2, wanted: clouds.MachineSpec) -> clouds.MachinePending:
        """Decide the arguments in advance, so that a repeated call has the same ones."""
        launch.types(wanted)
        answer = await ec2.call("DescribeImages", launch.image_query(wanted.image))
        images = [one for one in listed(answer.get("imagesSet")) if one.get("imageState") == "available"]
        if not images:
            raise clouds.LaunchFailed(
                f"AWS has no image for {wanted.image.get('name', '')}: {_image_criteria(wanted.image)}"
            )
        # The id decides between images of the same second, so that repeated calls choose the same one.
        newest = max(images, key=lambda one: (one.get("creationDate", ""), one["imageId"]))
        # Stored before the first call that makes something: EC2 rejects a client token that it has seen with other
        # arguments.
        state = {"image": newest["imageId"], "device": newest.get("rootDeviceName") or launch.ROOT}
        if chosen := launch.subnet(wanted):
            state["subnet"] = chosen
        return clouds.MachinePending(state, f"the image is {state['image']}")

    async def _describe(self, ec2: Ec2, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending:
        try:
            answer = await ec2.call("CreateLaunchTemplate", launch.template(wanted, state))
            found = answer["launchTemplate"]["launchTemplateId"]
        except AwsRefused as error:
            if error.code != "InvalidLaunchTemplateName.AlreadyExistsException":
                raise
            # The name contains the node, so an earlier call, whose response was lost, made this template.
            found = next((one["launchTemplateId"] for one in await self._templates(ec2, wanted.node)), "")
            if not found:
                raise clouds.CloudUnavailable(str(error)) from error
        return clouds.MachinePending({**state, "template": found}, "the launch template exists")

    async def _run(self, ec2: Ec2, wanted: clouds.MachineSpec, state: clouds.State) -> clouds.MachinePending:
        try:
            made = await self._made_by(ec2, wanted, state)
        except AwsRefused as error:
            if error.code != "IdempotentParameterMismatch":
                raise
            # An earlier attempt with other arguments has made an instance, which the list will show.
            raise clouds.CloudUnavailable(str(error)) from error
        return clouds.MachinePending(
            {**state, "instance": made, "asked": str(int(self._now_s()))}, "the instance is pending"
        )

    async def _made_by(self, ec2: Ec2, wanted: clouds.MachineSpec, state: clouds.State) -> str:
        if "fleet" not in wanted.flavor:
            answer = await ec2.call("RunInstances", launch.instance(wanted, state))
            return str(answer["instancesSet"][0]["instanceId"])
        answer = await ec2.call("CreateFleet", launch.fleet(wanted, state))
        # A fleet that could start nothing still returns 200, with the reasons in `errorSet`.
        for one in listed(answer.get("fleetInstanceSet")):
            for made in listed(one.get("instanceIds")):
                return str(made)
        errors = [(one.get("errorCode", ""), one.get("errorMessage", "")) for one in listed(answer.get("errorSet"))]
        raise _dead(
            "; ".join(f"{code}: {text}" for code, text in errors) or "the fleet is empty", [c for c, _ in errors]
        )

    def _look(
        self, wanted: clouds.MachineSpec, state: clouds.State, found: Mapping[str, Any]
    ) -> clouds.MachinePending | clouds.Made:
        reported, reason = str(found["instanceState"]["name"]), found.get("stateReason") or {}
        new_state = {**state, "instance": str(found["instanceId"])}
        new_state.setdefault("asked", str(int(self._now_s())))
        if reported == "pending":
            return clouds.MachinePending(new_state, "the instance is pending")
        # A stopped or terminated machine never comes back: AWS has reclaimed a spot instance, or a shutdown has
        # terminated it.
        if reported != "running":
            text = f"the instance {found['instanceId']} is {reported}"
            message = str(reason.get("message") or found.get("reason") or "")
            raise _dead(f"{text}: {message}" if message else text, [str(reason.get("code", ""))])
        public = bool(wanted.flavor.get("public-ipv4"))
        known_addresses = addresses(
            found.get("ipAddress") or "",
            found.get("privateIpAddress") or "",
            found.get("ipv6Address") or "",
            public or bool(wanted.flavor.get("public-ipv6")),
        )
        if not known_addresses["interface_ip"] or (public and not known_addresses["public_ipv4"]):
            return clouds.MachinePending(new_state, "the instance runs, but has no address yet")
        about = {
            **known_addresses,
            "az": (found.get("placement") or {}).get("availabilityZone", ""),
            "cloud": self.name,
            "region": str(wanted.provider.get("region", "")),
            "host_id": (found.get("placement") or {}).get("hostId", ""),
            "external_id": new_state["instance"],
            "node_properties": {"spot": found.get("instanceLifecycle") == "spot"},
        }
        return clouds.Made(new_state["instance"], new_state, host(wanted.image, known_addresses["interface_ip"]), about)

    @understood
    async def remove(self, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        try:
            return await self._remove(self._at(wanted.provider), wanted, state)
        except Stays:
            # AWS rejects only this resource. Any other refusal concerns the account, and must not count as a failure of
            # this node.
            raise
        except (clouds.LaunchFailed, clouds.OverQuota) as error:
            raise clouds.CloudUnavailable(str(error)) from error

    async def _remove(self, ec2: Ec2, wanted: clouds.MachineSpec, state: clouds.State) -> bool:
        every = await ec2.ours()
        own_ids = [
            id
            for id, instance in every.items()
            if id == state.get("instance") or tags_of(instance).get(clouds.NODE_TAG) == wanted.node
        ]
        left = [id for id in own_ids if not _is_gone(every[id])]
        for id in left:
            if every[id]["instanceState"]["name"] != "shutting-down":
                await self._ask(ec2, "TerminateInstances", {"InstanceId": [id]})
        # An instance that is not listed yet must not count as gone, or it would run on without any record of it.
        new = not own_ids and "instance" in state and self._now_s() - float(state.get("asked", 0)) <= SEEN_S
        if new and await self._ask(ec2, "TerminateInstances", {"InstanceId": [state["instance"]]}):
            left.append(state["instance"])  # not in the list yet
        if left:
            return False
        # Instances first: while one exists, its volumes are in use.
        if "fleet" in wanted.flavor:
            for template in await self._templates(ec2, wanted.node):
                await self._ask(ec2, "DeleteLaunchTemplate", {"LaunchTemplateId": template["launchTemplateId"]})
        volumes = [
            one for one in (await ec2.our_volumes()).values() if tags_of(one).get(clouds.NODE_TAG) == wanted.node
        ]
        for volume in volumes:
            # Volumes in use are deleted with their instance (DeleteOnTermination). This deletes volumes whose instance
            # was never made.
            if volume.get("status") not in ("in-use", "deleting"):
                await self._ask(ec2, "DeleteVolume", {"VolumeId": volume["volumeId"]})
        return not volumes

    async def _ask(self, ec2: Ec2, action: str, arguments: Mapping[str, Any]) -> bool:
        """Call an action that deletes a resource, and return whether it existed. Raise Stays."""
        try:
            return await ec2.do(action, arguments)
        except AwsRefused as error:
            raise Stays(str(error)) from error

    async def _templates(self, ec2: Ec2, node: str) -> list[dict[str, Any]]:
        arguments = {"Filter": [{"Name": f"tag:{clouds.NODE_TAG}", "Value": [node]}]}
        return await ec2.every("DescribeLaunchTemplates", "launchTemplates", arguments, 200)

    @understood
    async def resources(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        try:
            ec2 = self._at(provider)
            instances = [one for one in await ec2.every_instance() if not _is_gone(one)]
            volumes = await ec2.every("DescribeVolumes", "volumeSet")
            templates = await ec2.every("DescribeLaunchTemplates", "launchTemplates", page=200)
            sizes = await ec2.sizes([one["instanceType"] for one in instances])
        except (clouds.LaunchFailed, clouds.OverQuota) as error:
            raise clouds.CloudUnavailable(str(error)) from error
        found = list[clouds.Resource]()
        for one in instances:
            kind, is_spot = one["instanceType"], one.get("instanceLifecycle") == "spot"
            taken: clouds.Amounts = launch.uses(kind, *sizes[kind], is_spot) if kind in sizes else {"instances": 1.0}
            found.append(clouds.Resource(one["instanceId"], "instance", tags_of(one), taken))
        for one in volumes:
            amounts = {"volumes": 1.0, "volume-gb": float(one.get("size") or 0)}
            found.append(clouds.Resource(one["volumeId"], "volume", tags_of(one), amounts))
        found += [clouds.Resource(one["launchTemplateId"], "launch-template", tags_of(one), {}) for one in templates]
        return found

    async def delete(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        calls: dict[str, tuple[str, dict[str, Any]]] = {
            "instance": ("TerminateInstances", {"InstanceId": [resource.id]}),
            "volume": ("DeleteVolume", {"VolumeId": resource.id}),
            "launch-template": ("DeleteLaunchTemplate", {"LaunchTemplateId": resource.id}),
        }
        try:
            await self._ask(self._at(provider), *calls[resource.kind])
        except Stays:
            raise
        except (clouds.LaunchFailed, clouds.OverQuota) as error:
            raise clouds.CloudUnavailable(str(error)) from error

    @understood
    async def limits(self, provider: Mapping[str, Any]) -> clouds.Amounts:
        try:
            return await self._at(provider).limits()
        except clouds.LaunchFailed as error:
            raise clouds.CloudUnavailable(str(error)) from error

    async def close(self) -> None:
        await self.images.close()
        await self._http.close()


def _is_gone(instance: Mapping[str, Any]) -> bool:
    return bool(instance["instanceState"]["name"] == GONE)


def _dead(text: str, codes: list[str]) -> Exception:
    """Return the error for a missing instance: OverQuota for lack of capacity, otherwise LaunchFailed."""
    short = [code.rpartition(".")[2] for code in codes]
    full = bool(short) and all(one in FULL or one.endswith("LimitExceeded") for one in short)
    return clouds.OverQuota(f"AWS EC2 says: {text}") if full else clouds.LaunchFailed(f"AWS EC2 says: {text}")


def _image_criteria(image: Mapping[str, Any]) -> str:
    return str(image.get("image-id") or image.get("image-filters"))[:200]
