"""Test how lines and tables fit into a terminal, and which sequences it receives."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.terminal.screen import Block, LiveDrawing, Terminal, TextTable, paragraph
from headgate.cli.terminal.text import Text, columns, joined

ANYTHING = st.text(st.characters(codec=None), max_size=30) | st.text(
    "ab \t\n\x1b[m漢é\u0301👩\u200d🚀\ufe0f\u202e", max_size=30
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("gate", 4),
        ("漢字", 4),
        ("e\u0301a\u0308", 2),
        ("🚀", 2),
        ("❤\ufe0f", 2),
        ("\U0001f1eb\U0001f1f7", 2),  # a flag
        ("\u1112\u1161\u11ab", 2),  # one Korean syllable of three parts
        ("ｱ", 1),
        ("● ▶ ✔ …", 7),
    ],
)
def test_columns_are_those_of_a_terminal(text: str, expected: int) -> None:
    assert columns(text) == expected


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("gate", 4, "gate"),
        ("gates", 4, "gat…"),
        ("漢字仮名", 5, "漢字…"),
        ("漢字仮名", 4, "漢…"),
        ("ae\u0301o\u0308u", 3, "ae\u0301…"),
        ("ab", 1, "…"),
    ],
)
def test_text_that_is_too_long_ends_with_an_ellipsis(text: str, width: int, expected: str) -> None:
    assert Text(text).cropped(width).plain == expected


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("one two  three", 7, ["one two", "three"]),
        ("one two three", 6, ["one", "two", "three"]),
        ("  indented words", 10, ["  indented", "words"]),
        ("unbreakable", 4, ["unbr", "eaka", "ble"]),
        ("漢字仮名", 5, ["漢字", "仮名"]),
        ("漢a", 1, ["…", "a"]),
    ],
)
def test_lines_are_broken_between_words(text: str, width: int, expected: list[str]) -> None:
    assert [line.plain for line in Text(text).wrapped(width)] == expected


def test_styles_stay_with_their_pieces() -> None:
    both = joined((Text("ok", "green"), Text("broken", "red")), " ")
    styles = {"green", "red"}
    assert both.painted(styles) == "\x1b[32mok\x1b[0m \x1b[31mbroken\x1b[0m"
    assert both.cropped(5).painted(styles) == "\x1b[32mok\x1b[0m \x1b[31mb…\x1b[0m"
    assert [line.painted({"red"}) for line in both.wrapped(6)] == ["ok", "\x1b[31mbroken\x1b[0m"]


def test_a_combining_mark_without_a_character_does_not_affect_the_text_before() -> None:
    assert (Text("a") + Text("\u0301b")).plain == "a\u25cc\u0301b"


def plain(table: TextTable, width: int | None = None) -> list[str]:
    return [line.plain for line in table.lines(width)]


def test_columns_stand_below_each_other_whatever_is_in_them() -> None:
    table = TextTable("name", "state")
    table.add_row("漢字", "on")
    table.add_row("e\u0301", "")
    table.add_row("last")
    assert plain(table) == ["name  state", "漢字  on", "e\u0301", "last"]


def test_the_widest_columns_give_way() -> None:
    broken, cropped = TextTable("id", "what"), TextTable(crop=True)
    for table in (broken, cropped):
        table.add_row("1", "it does not fit", "nor does it")
        table.add_line(Text("across everything"))
    lines = ["id  what", "1   it     nor", "    does   does", "    not    it", "    fit", "across everyth…"]
    assert plain(broken, 15) == lines
    assert plain(cropped, 16) == ["1  it do…  nor …", "across everythi…"]
    assert "it does not fit  nor does it" in plain(cropped)[0], "where there is no terminal nothing is cut"


def test_one_huge_cell_does_not_widen_all_rows() -> None:
    table = TextTable("a", "b")
    table.add_row("x" * 5_000, "whole")
    table.add_row("short", "near")
    long, short = plain(table)[1:]
    assert long == f"{'x' * 5_000}  whole" and len(short) < 1_100


@pytest.mark.heavy
@given(st.lists(st.lists(ANYTHING, max_size=4), max_size=4), st.integers(1, 40), st.booleans())
def test_no_line_is_wider_than_the_terminal_or_controls_it(rows: list[list[str]], width: int, crop: bool) -> None:
    table = TextTable("one", "二", crop=crop)
    for row in rows:
        table.add_row(*row)
    everything = [*table.lines(width), *(part for row in rows for cell in row for part in Text(cell).wrapped(width))]
    assert all(line.columns <= width for line in everything)
    shown = "".join(line.plain for line in (*everything, *table.lines()))
    assert not {unicodedata.category(each) for each in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.bidirectional(each) in ("RLO", "LRO", "RLE", "LRE", "RLI", "LRI") for each in shown)


class Screen(io.StringIO):
    """Show the output like a terminal of unlimited height."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.row, self.column = [""], 0, 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        super().write(text)
        for part in text.replace("\x1b[", "\0\x1b[").split("\0"):
            self._take(part)
        return len(text)

    def _take(self, part: str) -> None:
        if part.startswith("\x1b["):
            end = next(n for n, each in enumerate(part) if each.isalpha())
            argument, do, part = part[2:end], part[end], part[end + 1 :]
            if do == "A":
                self.row -= int(argument)
                assert self.row >= 0
            elif do in "KJ":
                self.rows[self.row] = self.rows[self.row][: self.column]
                if do == "J":
                    del self.rows[self.row + 1 :]
            else:
                assert do in "mhl"
        for each in part:
            self._put(each)

    def _put(self, each: str) -> None:
        if each == "\r":
            self.column = 0
        elif each == "\n":
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        else:
            here = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = here[: self.column] + each + here[self.column + 1 :]
            self.column += 1


WIDTH = 12
HERE = {"TERM": "xterm", "COLUMNS": str(WIDTH), "LINES": "5"}
WORDS = st.text("ab ", max_size=3 * WIDTH)


@given(st.lists(st.tuples(st.booleans(), st.lists(WORDS, max_size=7)), max_size=8))
def test_a_live_drawing_keeps_printed_lines(steps: list[tuple[bool, list[str]]]) -> None:
    screen = Screen()
    terminal, messages, shown = Terminal(screen, HERE), list[str](), list[str]()
    with LiveDrawing(terminal) as live:
        for prints, words in steps:
            if prints:
                messages += (word[:WIDTH] for word in words)
                terminal.print(Block(*(Text(word[:WIDTH]) for word in words)))
            else:
                live.update(Block(*map(Text, words)))
                shown = [part.plain for word in words for part in Text(word).wrapped(WIDTH)]
                if len(shown) > 4:
                    shown[3:] = ["…"]
            assert [row.rstrip() for row in screen.rows if row.strip()] == [
                row.rstrip() for row in (*messages, *shown) if row.strip()
            ]
    assert [row for row in screen.rows if row] == [row for row in messages if row]
    assert screen.getvalue().endswith("\x1b[?25h")


def test_the_alternate_screen_is_left_however_the_drawing_ends() -> None:
    screen = Screen()

    def interrupted() -> None:
        with LiveDrawing(Terminal(screen, HERE), screen=True):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue() == "\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l"


def test_nothing_is_sent_for_a_drawing_that_did_not_change_until_the_size_does() -> None:
    screen, size = io.StringIO(), dict(HERE)
    screen.isatty = lambda: True  # type: ignore[method-assign]  # a terminal
    with LiveDrawing(Terminal(screen, size), screen=True) as live:
        live.update(Text("gate"))
        before = len(screen.getvalue())
        live.update(Text("gate"))
        assert len(screen.getvalue()) == before
        size["COLUMNS"] = "3"
        live.update(Text("gate"))
        assert "gat\r\n" in screen.getvalue()[before:]


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [
        (True, {"TERM": "xterm"}, "\x1b[31mred\x1b[0m\x1b[1mbold\x1b[0m\n"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "red\x1b[1mbold\x1b[0m\n"),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, "\x1b[31mred\x1b[0m\x1b[1mbold\x1b[0m\n"),
        (True, {"TERM": "dumb"}, "redbold\n"),
        (False, {"TERM": "xterm"}, "redbold\n"),
        (False, {"FORCE_COLOR": "1"}, "\x1b[31mred\x1b[0m\x1b[1mbold\x1b[0m\n"),
        (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, "redbold\n"),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, "red\x1b[1mbold\x1b[0m\n"),
    ],
)
def test_colours_are_for_terminals(terminal: bool, environment: dict[str, str], expected: str) -> None:
    out = Screen() if terminal else io.StringIO()
    Terminal(out, environment).print(Text("red", "red") + Text("bold", "bold"))
    assert out.getvalue() == expected


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm", "FORCE_COLOR": "1"}])
def test_where_nothing_can_be_drawn_over_nothing_is(environment: dict[str, str]) -> None:
    out = Screen() if environment["TERM"] == "dumb" else io.StringIO()
    with LiveDrawing(Terminal(out, environment)) as live:
        live.update(Text("gate"))
    assert out.getvalue() == ""


def test_a_text_of_several_lines_is_printed_as_such_only_where_allowed() -> None:
    out = io.StringIO()
    terminal = Terminal(out, {})
    terminal.print("one\ntwo")
    terminal.print(paragraph("one\ntwo\x1b[2J"))
    assert out.getvalue() == "one\\ntwo\none\ntwo\n"
