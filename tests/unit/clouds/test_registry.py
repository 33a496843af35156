"""Test that a driver of a cloud is a row and a module: settings, checks and connections follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.adapters.nodes.clouds.registry import CLOUDS, CloudDriver, CloudDriverOptions, MissingLibrary, settings_of
from headgate.adapters.option import ConnectionOption
from headgate.base.errors import UserError
from headgate.cli.main import group
from headgate.cli.options import OPTIONS, add
from headgate.cli.resources import cloud, cloud_names, rate
from headgate.cli.settings import Settings, read
from tests.unit.clouds.kennel import Kennel

KENNEL = CloudDriver(
    "tests.unit.clouds.kennel", {"door": ConnectionOption("text", "", "which one.")}, ("door", "which one")
)
BARE = CloudDriver("tests.unit.clouds.lacking_library", {}, extra="dogs")


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(OPTIONS["connection *"])
    monkeypatch.setitem(OPTIONS, "connection *", known)
    for name, row in (("kennel", KENNEL), ("bare", BARE)):
        monkeypatch.setitem(CLOUDS, name, row)
        add(known, name, settings_of(name))
    known["driver"] = known["driver"]._replace(kind=f"{known['driver'].kind},kennel,bare")


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "headgate.conf").write_text(text)
    return read(tmp_path / "headgate.conf", {})


def test_a_connection_is_made_by_its_row(tmp_path: Path) -> None:
    found = settings(
        tmp_path, "[connection dogs]\ndriver = kennel\ndoor = red\nrate = 0.5\n[connection g]\nbaseurl = /srv\n"
    )
    assert cloud_names(found) == ["dogs"]
    made = cloud(found, "dogs")
    assert isinstance(made, Kennel)
    assert made.given == CloudDriverOptions("dogs", {"driver": "kennel", "door": "red", "rate": "0.5"}, tmp_path)
    assert rate(found, "dogs") == 0.5


def test_a_cloud_gets_two_requests_a_second_by_default(tmp_path: Path) -> None:
    assert rate(settings(tmp_path, "[connection dogs]\ndriver = kennel\ndoor = red\n"), "dogs") == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("", r"headgate.conf:1: \[connection dogs\] needs a door: which one"),
        ("door = red\nrate = often", r"headgate.conf:4: rate must be a number, not 'often'"),
        ("door = red\ndoors = 2", r"unknown option 'doors' in \[connection dogs\]; did you mean 'door'"),
        ("door = red\napp_id = 7", r"unknown option 'app_id' in \[connection dogs\]"),
    ],
)
def test_errors_in_a_section_are_reported(tmp_path: Path, option: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(tmp_path, f"[connection dogs]\ndriver = kennel\n{option}\n")


def test_a_drivers_error_names_the_invalid_setting(tmp_path: Path) -> None:
    found = settings(tmp_path, "[connection dogs]\ndriver = kennel\ndoor = a/b\n")
    with pytest.raises(UserError, match=r"headgate.conf: \[connection dogs\]: door: a name, not a path"):
        cloud(found, "dogs")


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path) -> None:
    found = settings(tmp_path, "[connection dogs]\ndriver = bare\n")
    with pytest.raises(MissingLibrary, match=r"\(no_such_library\): pip install 'headgate\[dogs\]'"):
        cloud(found, "dogs")


def test_check_validates_the_sections_of_clouds(tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    text = "[connection git]\nbaseurl = git\n[connection dogs]\ndriver = {}\n"
    (tmp_path / "tenants.yaml").write_text("- tenant: {name: t, source: {}}\n")
    path = tmp_path / "headgate.conf"
    path.write_text(text.format("kennel\ndoor = a/b"))
    wrong = CliRunner().invoke(group, ["check", "--config", str(path)])
    assert wrong.exit_code != 0 and "door: a name, not a path" in wrong.output
    path.write_text(text.format("bare"))
    lacking = CliRunner().invoke(group, ["check", "--config", str(path)])
    assert lacking.exit_code == 0 and "pip install 'headgate[dogs]'" in lacking.output, lacking.output
