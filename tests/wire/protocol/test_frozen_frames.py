"""Frozen frames of version 1: this release writes and reads them as every other one does, and so does a stranger.

The bytes are in `tests/vectors`, the stranger is `tests/second_implementation`.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.second_implementation import frames as stranger
from tests.second_implementation import msgpack, vectors, write_vectors
from tests.second_implementation.records import (
    DOWN_TAGS,
    REQUIRED,
    RULES,
    UP_TAGS,
    WORDS,
    Record,
    decode_record,
    encode_record,
)
from tests.second_implementation.vectors import DEVICE_HPKE, DEVICE_SIGNING, HUB_HPKE, HUB_SIGNING
from tests.wire.doubles import frames as drawn
from tests.wire.doubles.translation import TYPES, to_record, to_struct
from wire.errors import Fault, RemoteError
from wire.protocol import codec, messages, rollout, sealing, topics
from wire.protocol.codec import Frame
from wire.protocol.messages import CipherSuite, DownNote, FrameHeader, UpNote
from wire.protocol.topics import TopicChannel

FROZEN = vectors.load("frames.json")
SIGNED, SEALED = FROZEN["signed"], FROZEN["sealed"]
FRAMES = SIGNED + SEALED
SECOND_NAME = "tests.second_implementation"
SECOND = ROOT.joinpath(*SECOND_NAME.split("."))
EXPLAIN = "add a vector with it: tests/vectors/README.md"


def each(found: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", found, ids=[one["name"] for one in found])


def sender_of(vector: dict[str, Any]) -> bytes:
    return DEVICE_SIGNING if vector["channel"].startswith("up/") else HUB_SIGNING


def reader_of(vector: dict[str, Any]) -> bytes:
    return HUB_HPKE if vector["channel"].startswith("up/") else DEVICE_HPKE


def decode_message(kind: str, data: bytes) -> Any:
    if kind == "Escalation":
        return codec.decode_escalation(data)
    if kind == "Verdict":
        return codec.decode_verdict(data)
    return codec.decode_up_note(data) if kind in UP_TAGS.values() else codec.decode_down_note(data)


def complete(record: Record) -> Record:
    """The record with the defaults of all fields, also of its parts, as the page has them."""
    fields = {rule.name: record.fields.get(rule.name, rule.default) for rule in RULES[record.kind].fields}
    return Record(record.kind, {name: _complete_value(value) for name, value in fields.items()})


def _complete_value(value: Any) -> Any:
    if isinstance(value, Record):
        return complete(value)
    if isinstance(value, list):
        return [_complete_value(one) for one in value]
    return {key: _complete_value(one) for key, one in value.items()} if isinstance(value, dict) else value


def is_complete(record: Any) -> bool:
    """Whether a record and its parts name every field: what this release writes."""
    if isinstance(record, Record):
        return len(record.fields) == len(RULES[record.kind].fields) and all(map(is_complete, record.fields.values()))
    if isinstance(record, dict):
        return all(map(is_complete, record.values()))
    return all(map(is_complete, record)) if isinstance(record, list) else True


# The product


@each(FRAMES)
def test_a_frozen_frame_is_split_verified_and_read(vector: dict[str, Any]) -> None:
    frame = codec.split_frame(vector["frame"])
    assert to_record(frame.header) == vector["header"]
    assert (frame.suite, frame.clear) == (vector["suite"], vector["frame"][: len(frame.clear)])
    channel, padded = TopicChannel(vector["channel"]), vector.get("padded")
    by = Ed25519PrivateKey.from_private_bytes(sender_of(vector)).public_key()
    sealing.verify_frame(frame, by=by, channel=channel, binding=b"" if padded else vector["binding"])
    body = frame.body
    if padded:
        key = X25519PrivateKey.from_private_bytes(reader_of(vector))
        opened = sealing.open_sealed_frame(frame, key=key, channel=channel, binding=vector["binding"])
        assert opened == padded
        body = codec.unpad_plaintext(opened)
    assert body == vector["encoded"]
    assert to_record(decode_message(vector["message"].kind, body)) == complete(vector["message"])


@each([vector for vector in FRAMES if is_complete(vector["message"])])
def test_this_release_writes_the_frozen_bytes(vector: dict[str, Any]) -> None:
    message, header = to_struct(vector["message"]), to_struct(vector["header"])
    encoded = codec.encode_wire_message(message)
    assert encoded == vector["encoded"]
    suite = CipherSuite(vector["suite"])
    clear = codec.encode_clear_part(suite, header)
    assert clear == vector["frame"][: len(clear)]
    if "padded" not in vector:
        by, channel = Ed25519PrivateKey.from_private_bytes(sender_of(vector)), TopicChannel(vector["channel"])
        made = sealing.sign_frame(header, encoded, by=by, channel=channel, binding=vector["binding"])
        assert made == vector["frame"]
    else:
        assert codec.pad_plaintext(encoded, len(vector["padded"])) == vector["padded"]


@each(
    [
        vector
        for vector in SEALED
        if vector["message"].kind == "Verdict" and vector["message"]["prediction"]["model"] == "mail@2"
    ]
)
def test_a_verdict_with_a_text_has_the_frozen_size(vector: dict[str, Any]) -> None:
    assert codec.choose_text_class(len(vector["encoded"])) == len(vector["padded"])


@each(FROZEN["bindings"])
def test_bindings_are_the_frozen_ones(vector: dict[str, Any]) -> None:
    if "signing_key" in vector:
        assert sealing.compute_order_binding(vector["signing_key"]) == vector["binding"]
        return
    fingerprint = codec.hash_plaintext(vector["padded"])
    assert sealing.compute_verdict_binding(fingerprint, vector["model"], vector["policy"]) == vector["binding"]


def test_no_two_questions_share_a_binding_by_moving_a_border() -> None:
    bindings = [vector["binding"] for vector in FROZEN["bindings"]]
    assert len(set(bindings)) == len(bindings)
    fingerprint = bytes(32)
    assert sealing.compute_verdict_binding(fingerprint, "ab@1", "c") != sealing.compute_verdict_binding(
        fingerprint, "a", "b@1c"
    )


@each(FROZEN["topics"])
def test_topics_are_the_frozen_ones(vector: dict[str, Any]) -> None:
    channel = TopicChannel(vector["channel"])
    assert topics.build_topic(vector["device"], channel) == vector["topic"]
    if vector["channel"].startswith("up/"):
        assert topics.parse_up_topic(vector["topic"]) == (vector["device"], channel)


@each(FROZEN["keys"])
def test_key_ids_are_the_frozen_ones(vector: dict[str, Any]) -> None:
    assert sealing.compute_key_id(vector["public"]) == vector["key_id"]


# those of enrolment: tests/cloud_hub/enrollment/test_frozen_proofs.py, tests/edge_agent/identity/test_frozen_proofs.py
@each([one for one in FROZEN["statements"] if one["name"] not in ("enrolment", "renewal", "retirement")])
def test_statements_beside_frames_are_the_frozen_ones(vector: dict[str, Any]) -> None:
    if "mark" in vector:
        assert sealing.hash_subject_mark(vector["device"], vector["subject"]) == vector["mark"]
    elif "text" in vector:
        found = sealing.build_erase_text(
            vector["device"], vector["subject"].hex(), vector["before_ms"], vector["questions"]
        )
        assert found == vector["text"]
    else:
        stone = msgspec.json.decode(vector["body"], type=sealing.ErasureTombstone)
        assert msgspec.json.encode(stone).decode() == vector["body"]
        signer = Ed25519PublicKey.from_public_bytes(stranger.signing_public(HUB_SIGNING))
        signer.verify(vector["signature"], sealing.STATEMENT_TAG + vector["body"].encode())


# The second implementation


@each(FRAMES)
def test_the_second_implementation_reads_and_writes_the_frozen_frame(vector: dict[str, Any]) -> None:
    frame = stranger.split(vector["frame"])
    assert frame.header == vector["header"]
    binding = b"" if "padded" in vector else vector["binding"]
    assert stranger.is_signed_by(frame, stranger.signing_public(sender_of(vector)), vector["channel"], binding)
    body = frame.body
    if "padded" in vector:
        opened = stranger.open_sealed(frame, reader_of(vector), vector["channel"], vector["binding"])
        assert opened == vector["padded"]
        body = stranger.unpad(opened)
    assert complete(decode_record(body, vector["message"].kind)) == complete(vector["message"])
    assert encode_record(vector["message"]) == body


def test_what_would_be_written_today_is_what_is_frozen() -> None:
    """The second implementation still makes every vector: neither it nor a vector was changed for the other."""
    for name, groups in write_vectors.make_all().items():
        frozen = vectors.load(name)
        for group, made in groups.items():
            there = {vector["name"]: vector for vector in frozen[group]}
            for vector in made:
                assert vectors.from_json(vectors.to_json(vector)) == there[vector["name"]], (name, vector["name"])


def test_the_second_implementation_imports_nothing_of_the_product() -> None:
    standard = {
        "ast",
        "base64",
        "collections",
        "dataclasses",
        "hashlib",
        "hmac",
        "json",
        "pathlib",
        "re",
        "struct",
        "typing",
    }
    for path in sorted(SECOND.glob("*.py")):
        for module in list_imports(path):
            known = module.split(".")[0] in {*standard, "cryptography"} or module.startswith(SECOND_NAME)
            assert known, f"{path.name} imports {module}"


def list_imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            assert getattr(node.func, "id", getattr(node.func, "attr", "")) not in ("__import__", "import_module")
    return found


# What one side makes, the other reads


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(0, 2**63 - 1), "float": st.floats(allow_nan=False), "bool": st.booleans(),
    "text": st.text(max_size=8), "bytes": st.binary(max_size=40),
    **{name: st.sampled_from(words) for name, words in WORDS.items()},
}  # fmt: skip


def values_of(type_: str) -> st.SearchStrategy[Any]:
    """Any value of a type of the page's tables."""
    if type_.startswith("?"):
        return st.none() | values_of(type_[1:])
    if type_.startswith("["):
        return st.lists(values_of(type_[1:-1]), max_size=3)
    if type_.startswith("{"):
        return st.dictionaries(st.text(max_size=8), values_of(type_[7:-1]), max_size=3)
    if type_.startswith("("):
        return st.tuples(*map(values_of, type_[1:-1].split(", "))).map(list)
    return records_of(type_) if type_ in RULES else PLAIN[type_]


def records_of(kind: str) -> st.SearchStrategy[Record]:
    """Any record of a kind, with all its fields."""
    fields = st.fixed_dictionaries({rule.name: values_of(rule.type) for rule in RULES[kind].fields})
    return fields.map(lambda found: Record(kind, settle_usage(kind, found)))


def settle_usage(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A usage goes with a text alone, and no more tokens are out of a cache than there are."""
    if kind == "Prediction" and (fields["text"] is None or fields["usage"] is None):
        return {**fields, "text": None, "usage": None}
    if kind == "TextUsage":
        return {**fields, "cached_tokens": min(fields["cached_tokens"], fields["prompt_tokens"])}
    return fields


MESSAGES = sorted({"Escalation", "Verdict", *UP_TAGS.values(), *DOWN_TAGS.values()})


@pytest.mark.parametrize("kind", MESSAGES)
def test_both_encode_any_message_to_the_same_bytes_and_read_it_back(kind: str) -> None:
    @settings(max_examples=20, deadline=None)
    @given(records_of(kind))
    def check(record: Record) -> None:
        message, encoded = to_struct(record), encode_record(record)
        assert codec.encode_wire_message(message) == encoded
        assert decode_message(kind, encoded) == message
        assert to_record(message) == record == complete(decode_record(encoded, kind))

    check()


class Raw(bytes):
    """Bytes that stand for a value as they are, well-formed or not."""


ODD = (
    None, True, 0, -1, 2**64 - 1, -(2**63), 1.5, float("inf"), "", "x", b"", [], {}, [1], {1: 2},
    *(Raw(bytes.fromhex(text)) for text in (
        "ca3fc00000", "ca40000000", "cf0000000000000005", "d90178", "d6ff00000000", "d40500", "a1ff", "c1",
    )),
)  # fmt: skip


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value, or one within it, can be replaced."""
    yield place
    inner = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, each_value in inner:
        yield from places_in(each_value, (*place, key))


def encode_with(value: Any, place: tuple[Any, ...] | None, odd: Any) -> bytes:
    """The msgpack of a value with `odd` at this place."""
    if place == ():
        return odd if isinstance(odd, Raw) else msgpack.encode(odd)
    inner = {key: None if not place or key != place[0] else place[1:] for key in keys_of(value)}
    if isinstance(value, list):
        parts = b"".join(encode_with(each_value, inner[key], odd) for key, each_value in enumerate(value))
        return msgpack.encode_size("array", len(value)) + parts
    if isinstance(value, dict):
        parts = b"".join(msgpack.encode(key) + encode_with(value[key], inner[key], odd) for key in value)
        return msgpack.encode_size("map", len(value)) + parts
    return msgpack.encode(value)


def keys_of(value: Any) -> Iterable[Any]:
    return range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()


@each([vector for vector in FRAMES if is_complete(vector["message"])])
def test_both_refuse_the_same_malformed_messages(vector: dict[str, Any]) -> None:
    """An odd value in each place of a message: what one side takes the other takes, and reads the same."""
    kind, tree = vector["message"].kind, msgpack.decode(vector["encoded"])
    for place in places_in(tree):
        for odd in ODD:
            data = encode_with(tree, place, odd)
            assert read_by_product(kind, data) == read_by_stranger(kind, data), (place, odd)


def read_by_product(kind: str, data: bytes) -> Record | None:
    try:
        record: Record = to_record(decode_message(kind, data))
    except RemoteError:
        return None
    return record


def read_by_stranger(kind: str, data: bytes) -> Record | None:
    try:
        return complete(decode_record(data, kind))
    except ValueError:
        return None


@given(st.integers(0, 20_000))
def test_both_pad_a_text_to_the_same_size(size: int) -> None:
    assert codec.choose_text_class(size) == stranger.text_size(size) >= size + 4


def test_a_text_that_just_fits_a_size_class_is_padded_to_it_and_one_byte_more_to_the_next() -> None:
    assert [codec.choose_text_class(size) for size in (508, 509, 1020, 1021)] == [512, 1024, 1024, 2048]
    assert [stranger.text_size(size) for size in (508, 509, 1020, 1021)] == [512, 1024, 1024, 2048]


@settings(max_examples=30, deadline=None)
@given(drawn.headers, st.binary(max_size=300), st.sampled_from(TopicChannel), st.binary(max_size=40))
def test_both_seal_what_the_other_opens(
    header: FrameHeader, message: bytes, channel: TopicChannel, binding: bytes
) -> None:
    hub, device = X25519PrivateKey.from_private_bytes(HUB_HPKE), Ed25519PrivateKey.from_private_bytes(DEVICE_SIGNING)
    padded = codec.pad_plaintext(message)
    assert stranger.pad(message) == padded
    ours = sealing.seal_frame(header, padded, to=hub.public_key(), by=device, channel=channel, binding=binding)
    frame = stranger.split(ours)
    assert frame.header == to_record(header)
    assert stranger.is_signed_by(frame, stranger.signing_public(DEVICE_SIGNING), channel.value)
    assert stranger.open_sealed(frame, HUB_HPKE, channel.value, binding) == padded
    theirs = stranger.seal(
        to_record(header), padded, stranger.hpke_public(HUB_HPKE), DEVICE_SIGNING, channel.value, binding=binding
    )
    opened = codec.split_frame(theirs)
    assert opened.header == header
    sealing.verify_frame(opened, by=device.public_key(), channel=channel)
    assert sealing.open_sealed_frame(opened, key=hub, channel=channel, binding=binding) == padded


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=64), st.text(max_size=12), st.text(max_size=12), st.binary(min_size=32, max_size=32))
def test_both_compute_the_same_bindings(padded: bytes, model: str, policy: str, key: bytes) -> None:
    found = sealing.compute_verdict_binding(codec.hash_plaintext(padded), model, policy)
    assert found == stranger.verdict_binding(padded, model, policy)
    assert sealing.compute_order_binding(key) == stranger.order_binding(key)


@pytest.mark.parametrize("channel", list(TopicChannel))
def test_a_frame_of_one_channel_is_of_no_other(channel: TopicChannel) -> None:
    for vector in FRAMES:
        if vector["channel"] == channel:
            continue
        frame: Frame = codec.split_frame(vector["frame"])
        by = Ed25519PrivateKey.from_private_bytes(sender_of(vector)).public_key()
        with pytest.raises(RemoteError) as refused:
            sealing.verify_frame(
                frame, by=by, channel=channel, binding=b"" if "padded" in vector else vector["binding"]
            )
        assert refused.value.fault is Fault.SIGNATURE


# Evolution: a format that changes needs a new vector


def message_types() -> set[type]:
    """Every struct that goes over the wire, the parts of others too."""
    found: set[type] = {FrameHeader}
    left: list[Any] = [messages.Escalation, messages.Verdict, *get_args(UpNote), *get_args(DownNote)]
    while left:
        kind = left.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind not in found:
                found.add(kind)
                left += [field.type for field in msgspec.structs.fields(kind)]
        else:
            left += get_args(kind)
    return found


def records_in(value: Any) -> list[Record]:
    if isinstance(value, Record):
        return [value, *records_in(value.fields)]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return list(chain.from_iterable(map(records_in, parts)))


RECORDS = [record for vector in FRAMES for record in records_in([vector["message"], vector["header"]])]


@pytest.mark.parametrize("kind", sorted(kind.__name__ for kind in message_types()))
def test_every_message_has_a_vector_that_names_all_its_fields_in_order(kind: str) -> None:
    fields = list(TYPES[kind].__struct_fields__)
    written = [list(record.fields) for record in RECORDS if record.kind == kind]
    assert fields in written, f"{kind} has the fields {fields}, no vector has: {EXPLAIN}"
    assert [rule.name for rule in RULES[kind].fields] == fields
    assert (TYPES[kind].__struct_config__.tag or "") == RULES[kind].tag


@pytest.mark.parametrize("kind", sorted(kind.__name__ for kind in message_types()))
def test_every_field_has_a_vector_in_which_it_is_not_its_default(kind: str) -> None:
    for field in msgspec.structs.fields(TYPES[kind]):
        values = [
            record.fields[field.name] for record in RECORDS if record.kind == kind and field.name in record.fields
        ]
        assert any(value != to_record(field.default) for value in values), f"{kind}.{field.name}: {EXPLAIN}"


@pytest.mark.parametrize("kind", sorted(kind.__name__ for kind in message_types()))
def test_a_default_is_what_an_earlier_release_left_out(kind: str) -> None:
    """Its meaning is frozen with the field: who never wrote it still means this."""
    for field, rule in zip(msgspec.structs.fields(TYPES[kind]), RULES[kind].fields, strict=True):
        if field.default is not msgspec.NODEFAULT:
            assert to_record(field.default) == rule.default, f"{kind}.{field.name}"


@pytest.mark.parametrize("kind", sorted(kind.__name__ for kind in message_types()))
def test_every_message_whose_end_may_be_absent_has_a_vector_without_it(kind: str) -> None:
    needed = [field.name for field in msgspec.structs.fields(TYPES[kind]) if field.required]
    if len(needed) < len(TYPES[kind].__struct_fields__):
        assert any(list(record.fields) == needed for record in RECORDS if record.kind == kind), f"{kind}: {EXPLAIN}"


def test_the_notes_of_each_direction_are_those_of_the_page() -> None:
    assert {kind.__name__ for kind in get_args(UpNote)} == set(UP_TAGS.values())
    assert {kind.__name__ for kind in get_args(DownNote)} == set(DOWN_TAGS.values())


ROW = re.compile(r"\| `(\w+)` \| `([^`]+)` \| ([^|]*) \|")
PAGE = (ROOT / "docs/wire-format.md").read_text(encoding="utf-8")
SHOWN: dict[str, tuple[Any, ...]] = {"nil": (None,), "true": (True,), "false": (False,), "empty": ("", b"", [])}


def rows_of(kind: str) -> list[tuple[str, str, str]]:
    """Field, type and default of a record in the tables of the page."""
    title = "The header is a record" if kind == "FrameHeader" else f"### {kind}\n"
    assert title in PAGE, f"docs/wire-format.md describes no {kind}"
    table = PAGE.split(title, 1)[1].split("|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    return [(name, type_, default.strip()) for name, type_, default in ROW.findall(table)]


@pytest.mark.parametrize("kind", sorted(RULES))
def test_the_page_has_every_field_of_every_message_with_its_type_and_default(kind: str) -> None:
    rows = rows_of(kind)
    assert [(name, type_) for name, type_, _ in rows] == [(rule.name, rule.type) for rule in RULES[kind].fields]
    for rule, (name, _, shown) in zip(RULES[kind].fields, rows, strict=True):
        expected = rule.default
        if expected is REQUIRED:
            assert shown == "", name
        elif shown in SHOWN:
            assert expected in SHOWN[shown], name
        else:
            assert str(expected) == shown.strip("`") or float(expected) == float(shown), name
    tag = RULES[kind].tag
    assert not tag or f"### {kind}\n\nTag `{tag}`, on `" in PAGE


def test_every_word_is_frozen() -> None:
    frozen = {vector["name"]: vector["words"] for vector in FROZEN["words"]}
    for name, words in frozen.items():
        kind = getattr(messages, name, None) or getattr(rollout, name)
        assert [word.value for word in kind] == words == list(WORDS[name]), f"{name}: {EXPLAIN}"
        assert f"| `{name}` | {', '.join(f'`{word}`' for word in words)} |" in PAGE


TAG = re.compile(r'b"(skerry-[a-z-]+/[0-9]+)')


def test_every_domain_text_that_is_hashed_or_signed_stands_on_its_page() -> None:
    used = {
        (path.name, tag)
        for package in ("wire", "models", "policies", "edge_agent", "cloud_hub")
        for path in (ROOT / package).rglob("*.py")
        for tag in TAG.findall(path.read_text(encoding="utf-8"))
    }
    assert len(used) >= 14
    assert sorted((name, tag) for name, tag in used if f'"{tag}' not in PAGE and f"`{tag}" not in PAGE) == []
