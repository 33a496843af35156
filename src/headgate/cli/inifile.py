"""Read an INI file and the line number of every option, so that error messages can name it."""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headgate.base.errors import UserError
from headgate.base.files import text_of

_HEADING = re.compile(r"\[(?P<name>[^\]]+)\]")
_OPTION = re.compile(r"(?P<name>[^\s#;=:\[][^=:]*?)\s*(?:[=:]|$)")
_VARIABLE = re.compile(r"%%|%\((?P<name>[A-Za-z0-9_]+)\)s")
VARIABLES = ("ZUUL_", "HEADGATE_")
"""Prefixes of the environment variables that values may use, as in `%(ZUUL_SECRET)s`."""


@dataclass(frozen=True, slots=True)
class IniFile:
    """Hold the sections of a file, their options, and the line of each."""

    path: Path
    sections: Mapping[str, Mapping[str, str]]
    lines: Mapping[tuple[str, str], int]
    """(section, option) -> line, counted from 1. The empty option is the section's heading."""

    def at(self, section: str, option: str = "") -> str:
        """Return `file:line` of an option."""
        return f"{self.path}:{self.lines.get((section, option)) or self.lines.get((section, ''), 1)}"


def read_ini(path: Path, environment: Mapping[str, str]) -> IniFile:
    """Read the file. Raise UserError."""
    try:
        text = text_of(path, encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read: it is not UTF-8 ({error.reason} at byte {error.start})") from error
    before, nul, _ = text.partition("\0")
    if nul:  # no path and no name may contain it, and each would fail where it is used
        raise UserError(f"{path}:{before.count(chr(10)) + 1}: there is a NUL character; is this a text file?")
    # Disable configparser's default section, whose options would appear in all others. [DEFAULT] then is an ordinary
    # section, which `settings` rejects as unknown.
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(text, str(path))
    except configparser.MissingSectionHeaderError as error:
        raise UserError(
            f"{path}:{error.lineno}: this is not a settings file: the first option must follow a section heading, "
            f"such as [web]; found {error.line.strip()!r}"
        ) from error
    except configparser.DuplicateSectionError as error:
        raise UserError(f"{path}:{error.lineno}: [{error.section}] occurs twice; merge the two sections") from error
    except configparser.DuplicateOptionError as error:
        where = f"{path}:{error.lineno}"
        raise UserError(f"{where}: {error.option} is set twice in [{error.section}]; remove one") from error
    except configparser.ParsingError as error:
        line, quoted = error.errors[0]
        raise UserError(
            f"{path}:{line}: {quoted.strip()} is neither a section heading such as `[web]` nor `option = value`"
        ) from error
    # configparser does not record line numbers, so find them in a second, simple pass over the text.
    lines = _lines(text)
    found = IniFile(path, {}, lines)
    sections = {
        section: {name: filled(value, found.at(section, name), environment) for name, value in parser[section].items()}
        for section in parser.sections()
    }
    return IniFile(path, sections, lines)


def with_new_names(ini: IniFile, names: Mapping[str, str]) -> tuple[IniFile, tuple[str, ...]]:
    """Return the file as if its sections had their new names, and a warning for each that does not. Raise UserError
    for a section that exists under both names."""
    former = {old: new for old, new in names.items() if old in ini.sections}
    for old, new in former.items():
        if new in ini.sections:
            raise UserError(
                f"{ini.at(old)}: [{old}] is the former name of [{new}], which is in line {ini.lines[new, '']}; put the "
                f"options together under [{new}], and remove [{old}]"
            )
    warnings = tuple(
        f"{ini.at(old)}: [{old}] is now called [{new}]; rename it: the next release no longer reads the former name"
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
    """Return the value with references to environment variables replaced. Raise UserError that names `where`."""

    def one(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "%"
        # Refuse other variables: a settings file from somebody else could otherwise read, say, cloud credentials.
        if not name.startswith(VARIABLES):
            raise UserError(
                f"{where}: %({name})s: only variables whose names begin with {' or '.join(VARIABLES)} may be used"
            )
        if name not in environment:
            raise UserError(f"{where}: the environment variable {name} is not set")
        return environment[name]

    return _VARIABLE.sub(one, value)


def wrong_url(value: str) -> str:
    """Return the problem with a value that is a malformed URL, or an empty string. The text does not quote the
    value, since URLs may contain passwords. Lists are not split, since passwords may contain commas."""
    if "://" not in value:
        return ""
    try:
        parts = urlsplit(value)
        alone = parts.scheme in ("http", "https") and re.search(r"[\s,]", value) is None
        _ = parts.port if alone else None  # reading the port validates it
    except ValueError:
        return "is a URL with an invalid host or port; write it as https://HOST or https://HOST:PORT"
    return ""
