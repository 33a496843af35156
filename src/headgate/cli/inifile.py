"""Read an INI file with the line of every option, so that errors can name it."""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headgate.base.errors import UserError

_HEADING = re.compile(r"\[(?P<name>[^\]]+)\]")
_OPTION = re.compile(r"(?P<name>[^\s#;=:\[][^=:]*?)\s*(?:[=:]|$)")
_VARIABLE = re.compile(r"%%|%\((?P<name>[A-Za-z0-9_]+)\)s")
VARIABLES = ("ZUUL_", "HEADGATE_")
"""Beginnings of the names of environment variables that values may use: `%(ZUUL_SECRET)s`."""


@dataclass(frozen=True, slots=True)
class IniFile:
    """Hold sections, their options, and the line of each."""

    path: Path
    sections: Mapping[str, Mapping[str, str]]
    lines: Mapping[tuple[str, str], int]
    """(section, option) -> line, counted from 1; a heading has the empty option."""

    def at(self, section: str, option: str = "") -> str:
        """Return `file:line` of an option."""
        return f"{self.path}:{self.lines.get((section, option)) or self.lines.get((section, ''), 1)}"


def read_ini(path: Path, environment: Mapping[str, str]) -> IniFile:
    """Read the file. Raise UserError."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read: it is not UTF-8 ({error.reason} at byte {error.start})") from error
    # With a default section, options of [DEFAULT] would appear in all others; here it is an ordinary section, which
    # `settings` refuses.
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(text, str(path))
    except configparser.MissingSectionHeaderError as error:
        raise UserError(
            f"{path}:{error.lineno}: this is not a settings file: before the first option there must be a heading, "
            f"such as [web]; there is {error.line.strip()!r}"
        ) from error
    except configparser.DuplicateSectionError as error:
        raise UserError(f"{path}:{error.lineno}: [{error.section}] is there twice; put its options together") from error
    except configparser.DuplicateOptionError as error:
        where = f"{path}:{error.lineno}"
        raise UserError(f"{where}: {error.option} is set twice in [{error.section}]; leave one") from error
    except configparser.ParsingError as error:
        line, quoted = error.errors[0]
        raise UserError(
            f"{path}:{line}: {quoted.strip()} is neither a heading, `[web]`, nor `option = value`"
        ) from error
    # configparser keeps no lines, so they are found by a second, simple pass over the text.
    lines = _lines(text)
    found = IniFile(path, {}, lines)
    sections = {
        section: {name: filled(value, found.at(section, name), environment) for name, value in parser[section].items()}
        for section in parser.sections()
    }
    return IniFile(path, sections, lines)


def with_new_names(ini: IniFile, names: Mapping[str, str]) -> tuple[IniFile, tuple[str, ...]]:
    """Return the file as if its sections had their new names, and a warning for each that does not. Raise UserError
    for a section that is there under both names."""
    former = {old: new for old, new in names.items() if old in ini.sections}
    for old, new in former.items():
        if new in ini.sections:
            raise UserError(
                f"{ini.at(old)}: [{old}] is the former name of [{new}], which is in line {ini.lines[new, '']}; put the "
                f"options together under [{new}], and remove [{old}]"
            )
    warnings = tuple(
        f"{ini.at(old)}: [{old}] is now called [{new}]; rename it: the next release does not read it any more"
        for old, new in former.items()
    )
    sections = {former.get(section, section): options for section, options in ini.sections.items()}
    lines = {(former.get(section, section), option): line for (section, option), line in ini.lines.items()}
    return IniFile(ini.path, sections, lines), warnings


def _lines(text: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _HEADING.match(line):
            section = heading["name"]
            found[section, ""] = number
        elif option := _OPTION.match(line):  # an indented line continues the value above
            found.setdefault((section, option["name"].lower()), number)
    return found


def filled(value: str, where: str, environment: Mapping[str, str]) -> str:
    """Return the value with environment variables in place of their names. Raise UserError with the place."""

    def one(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "%"
        # Other variables are refused: a settings file of somebody else could read, for instance, cloud credentials.
        if not name.startswith(VARIABLES):
            raise UserError(
                f"{where}: %({name})s: only variables whose names begin with {' or '.join(VARIABLES)} are used"
            )
        if name not in environment:
            raise UserError(f"{where}: the environment variable {name} is not set")
        return environment[name]

    return _VARIABLE.sub(one, value)


def wrong_url(value: str) -> str:
    """Return why a value is a URL that cannot be read, or an empty string. The value is not shown: URLs may have
    passwords in them. A list is not taken apart, as passwords may have commas in them."""
    if "://" not in value:
        return ""
    try:
        parts = urlsplit(value)
        alone = parts.scheme in ("http", "https") and re.search(r"[\s,]", value) is None
        _ = parts.port if alone else None  # it is checked when it is read
    except ValueError:
        return "is a URL whose host or port cannot be read; write it as https://HOST or https://HOST:PORT"
    return ""
