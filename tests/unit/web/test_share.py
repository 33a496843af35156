"""Test the contents of feeds and badges."""

from __future__ import annotations

from xml.etree import ElementTree

from headgate.web.routes.summaries import _legal, picture


def test_characters_that_xml_does_not_allow_are_left_out() -> None:
    text = _legal("a\x07\x1b[31mb\ufffe\ud800\tc\nd & <e> \U0001f600")
    assert text == "a[31mb\tc\nd & <e> \U0001f600"


def test_a_badge_is_as_wide_as_its_name_and_stays_a_picture() -> None:
    for name in ("gate", "x" * 500, "<script>&"):
        found = ElementTree.fromstring(picture(name, good=True))
        assert 70 < float(found.attrib["width"]) < 300
        assert found.attrib["aria-label"].endswith(": passing")
