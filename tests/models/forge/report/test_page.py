"""Pieces of the report's page: tables line up, a busy machine is told, and both halves say what is out of domain."""

import xml.etree.ElementTree as ET

from models.bundle.measurements import DomainFigures, DomainScore
from models.forge.report.markup import PAGE_STYLE, render_table
from models.forge.report.page import describe_domain


def test_a_column_of_words_has_a_heading_of_words():
    tree = ET.fromstring(
        render_table(("path", "bytes", "why"), [("a", "1,024", ""), ("b", "7", "no better")], [False, True])
    )
    heads = [cell.attrib.get("class") for cell in tree.iter("th")]
    assert heads == ["words", None, "words"]
    assert [row.attrib.get("class") for row in tree.iter("tr")] == [None, None, "chosen"]


def test_an_empty_table_keeps_its_headings():
    tree = ET.fromstring(render_table(("path", "bytes & more"), []))
    assert [cell.text for cell in tree.iter("th")] == ["path", "bytes & more"]


def test_a_page_reaches_for_nothing_outside_itself():
    assert "url(" not in PAGE_STYLE
    assert "@import" not in PAGE_STYLE


def test_each_half_tells_its_false_alarms_and_what_it_finds():
    found = DomainFigures(DomainScore.ENERGY, -6.25, 0.05, 0.045, 0.03, 0.066, 800, 0.61, 200)
    told = describe_domain("the hub", found)
    assert "energy above -6.25, chosen for 5.0% of those in scope" in told
    assert "4.5% of 800 samples in scope (3.0% to 6.6%), and 61.0% of 200 out of scope" in told
