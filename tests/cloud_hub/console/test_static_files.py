"""What the console loads: files that others wrote are as they were shipped, pages hold no script, style or address."""

import re
import tomllib
from hashlib import sha256

from cloud_hub.console.rendering import FOLDER, STATIC

INLINE = re.compile(
    r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]*\bsrc=)|hx-on|\|\s*safe\b|autoescape", re.IGNORECASE
)
ELSEWHERE = re.compile(r"(?:src|href|action|hx-get|hx-post)=\"(?:https?:)?//", re.IGNORECASE)


def test_vendored_files_are_those_of_their_packages_and_each_has_a_licence():
    listed = tomllib.loads((FOLDER / "vendored.toml").read_text())["file"]
    texts = (STATIC / "vendor" / "LICENSES.txt").read_text()
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}
    found.pop("LICENSES.txt")
    assert found == {each["name"]: each["sha256"] for each in listed}
    assert all(each["name"] in texts and each["licence"] in {"0BSD", "MIT"} for each in listed)


def test_no_template_has_a_script_or_a_style_in_it_nor_loads_anything_from_elsewhere():
    for path in sorted((FOLDER / "templates").iterdir()):
        text = path.read_text()
        assert INLINE.findall(text) == [], path.name
        assert ELSEWHERE.findall(text) == [], path.name


def test_our_scripts_make_no_html_of_texts():
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
            path
        )
