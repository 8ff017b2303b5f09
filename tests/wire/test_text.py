"""A byte order mark in front of a text changes nothing; another encoding is named."""

import ast
import codecs
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cloud_hub.api.routing import parse_json
from cloud_hub.jobs.batches import split_lines
from cloud_hub.jobs.decisions import BatchLimits
from edge_agent.identity.enrollment import read_invite
from edge_agent.sources.json_lines import read_lines
from models.forge.text.labelled import _read_rows
from policies.analysis.probes import parse_probes
from policies.language.document import parse_policy
from tests import ROOT
from tests.sources import PACKAGES
from wire.http.oip import parse_infer_request
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_text, read_private_text, read_toml_file
from wire.text import decode_text

MARK = codecs.BOM_UTF8
POLICY = (ROOT / "policies/templates/demo.toml").read_bytes()

# Files that the program itself writes, or the kernel, or that come with the package: nobody's editor was at them.
OWN_TEXTS = {
    ("edge_agent/cli/agent.py", "TEMPLATE_FILE"),
    ("edge_agent/cli/policy_files.py", "name + ending"),
    ("cloud_hub/cli/join.py", "TEMPLATE_FILE"),
    ("models/update/partial_download.py", "path"),
    ("simulations/projects/templates/__init__.py", "path"),
    ("simulations/checking/databases.py", "identity"),
    ("simulations/report/page.py", "name"),
    ("wire/process/support.py", "config"),
}


class Point(msgspec.Struct):
    """What a body is read as."""

    x: int


def test_a_mark_is_taken_off_and_another_encoding_is_named() -> None:
    assert decode_text(MARK + b"a") == decode_text(b"a") == "a"
    for encoding in ("utf-16", "utf-16-be"):
        mark = b"" if encoding == "utf-16" else codecs.BOM_UTF16_BE
        with pytest.raises(ValueError, match="UTF-16 text: save it as UTF-8"):
            decode_text(mark + "a".encode(encoding))
    with pytest.raises(ValueError, match="not UTF-8"):
        decode_text(b"\xff")


def test_configurations_policies_and_samples_of_probes_may_begin_with_one(tmp_path: Path) -> None:
    file = tmp_path / "marked.toml"
    file.write_bytes(MARK + b"[a]\nb = 1\n")
    assert read_toml_file(file, ExitCode.CONFIG) == {"a": {"b": 1}}
    assert read_file_text(file, ExitCode.CONFIG).startswith("[a]")
    assert parse_policy((MARK + POLICY).decode()).compile() == parse_policy(POLICY.decode()).compile()
    assert parse_policy(MARK + POLICY).compile() == parse_policy(POLICY).compile()
    probes = '[[probe]]\nexpect = "keep"\n'
    with pytest.raises(Exception) as plain:
        parse_probes(probes)
    with pytest.raises(type(plain.value)) as marked:
        parse_probes("\ufeff" + probes)
    assert str(marked.value) == str(plain.value)  # which says what the probe lacks, and nothing of its first character


def test_secrets_of_text_may_begin_with_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_bytes(MARK + b"secret\r\n")
    assert read_private_text(file) == "secret"


def test_an_invite_may_begin_with_one() -> None:
    for text in ("skerry1:AAAA", "\ufeffskerry1:AAAA"):
        with pytest.raises(ExitError, match="the invite is damaged"):
            read_invite(text)


async def test_the_first_line_of_samples_may_begin_with_one(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    for text in (b"{}\n{}\n", b"{}"):
        file.write_bytes(MARK + text)
        with file.open("rb") as opened:
            found = [line async for line in read_lines(opened.fileno())]
        assert found == [b"{}"] * text.count(b"{")


async def test_a_batch_may_begin_with_one() -> None:
    async def chunks():
        yield MARK
        yield b"{}\n{}"

    assert [line async for line in split_lines(chunks(), BatchLimits())] == [b"{}", b"{}"]


def test_bodies_of_requests_may_begin_with_one() -> None:
    assert parse_json(MARK + b'{"x": 1}', Point) == Point(1)
    body = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]}'
    assert parse_infer_request(MARK + body).inputs.keys() == parse_infer_request(body).inputs.keys()


def test_tables_may_begin_with_one(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(MARK + b"text,label\nhello,greeting\n")
    assert _read_rows(file) == [(2, "hello", "greeting")]


def list_plain_readers() -> Iterator[tuple[str, str]]:
    """Every `read_text` and `open` of a text as plain UTF-8: (file, what is read)."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                modes = [word.value for word in node.args if isinstance(word, ast.Constant)]
                writes = any(isinstance(mode, str) and set(mode) & set("wax") for mode in modes)
                plain = any(word.arg == "encoding" and ast.unparse(word.value) == "'utf-8'" for word in node.keywords)
                if plain and not writes and node.func.attr in {"read_text", "open"}:
                    yield str(path.relative_to(ROOT)), ast.unparse(node.func.value)


def test_no_other_reader_of_texts_would_take_a_mark_for_a_character() -> None:
    found = set(list_plain_readers())
    own = {(file, read) for file, read in found if any(file == name and part in read for name, part in OWN_TEXTS)}
    assert found - own == set()
    assert len({name for name, _ in own}) == len({name for name, _ in OWN_TEXTS})  # each is still there
