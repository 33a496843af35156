"""Test that data between processes has a declared type, down to its last member."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.gate.state.works import BuildSpec, MergerAnswer, MergerWork
from tests.unit.map.golden import types_of_places

VALUES_OF_USERS = {
    "Login.claims": "what a provider says of a person, for the rules of the tenant file",
    "ReturnedArtifact.metadata": "as the job returned it",
    "Build.data": "what a job returned, of the shape of `gate.state.returns`",
    "Build.given": "artifacts for the job's variables",
    "BuildOutcome.data": "as Build.data",
    "BuildPaused.data": "as Build.data",
    "BuildSpec.hosts": "variables of Ansible",
    "BuildSpec.parent_data": "variables for the job",
    "BuildSpec.zuul": "the variable `zuul`, for the job",
    "FrozenJob.extra_vars": "variables of the configuration",
    "FrozenJob.group_vars": "variables of the configuration",
    "FrozenJob.host_vars": "variables of the configuration",
    "FrozenJob.vars": "variables of the configuration",
    "Parameter.default": "a value of the configuration",
    "Parameter.values": "values of the configuration",
    "PlaybookSecret.data": "variables of the configuration",
    "ByHand.parameters": "what was given, of the configuration's parameters",
    "PlaybookSecret.oidc": "what a token is to say, of the configuration",
    "NodeAnswer.hosts": "variables of Ansible",
    "NodeAnswer.resources": "what drivers say of what is not a host",
    "FlatImage.image": "keys of the configuration, for drivers",
    "ImageUpload.image": "as FlatImage.image",
    "ImageUpload.provider": "keys of the configuration, for drivers",
    "MadeNode.host": "variables of Ansible",
    "MadeNode.about": "what drivers tell of it, for jobs",
    "MadeNode.resources": "as NodeAnswer.resources",
    "MadeNode.settings": "what its provider says of it, in the words of its driver",
    "FlatLabel.label": "what a provider says of it, in the words of its driver; as are the next three",
    "FlatLabel.image": "",
    "FlatLabel.flavor": "",
    "FlatProvider.settings": "",
    "FlatProvider.hosts": "what it lists, as the configuration says it",
    "NodeAccount.settings": "as FlatProvider.settings",
    "Remains.reject": "what the pipeline says, in the words of drivers; as are the next two",
    "Remains.reports": "",
    "Remains.require": "",
    "Demands.reject": "as Remains.reject",
    "Demands.require": "as Remains.reject",
    "OutboxMessage.how": "what the pipeline says to the reporter, in the words of its driver",
    "FinishedBuild.returned": "as Build.data",
    "HandAction.details": "what was asked, as it was asked; for people",
}
"""Member -> why it may be any JSON."""


def untyped(kind: type, seen: set[type]) -> Iterator[str]:
    if kind in seen or not issubclass(kind, msgspec.Struct):
        return
    seen.add(kind)
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        parts = set(_parts(hint))
        if parts & {Any, object, dict, list, tuple}:
            yield f"{kind.__name__}.{name}"
        for part in parts:
            if isinstance(part, type):
                yield from untyped(part, seen)


def _parts(hint: Any) -> Iterator[Any]:
    """Return all types in it; a container only if its element type is not declared."""
    args = typing.get_args(hint)
    if not args:
        yield hint
    for arg in args:
        if arg is not Ellipsis:
            yield from _parts(arg)


def test_only_values_that_users_write_are_untyped() -> None:
    seen = set[type]()
    bodies = {BuildSpec, *typing.get_args(MergerWork), *typing.get_args(MergerAnswer)}
    kinds = {kind for kind in types_of_places() | bodies if isinstance(kind, type)}
    assert {name for kind in kinds for name in untyped(kind, seen)} == VALUES_OF_USERS.keys()
