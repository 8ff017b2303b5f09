"""The readers of the product, each with what feeds it and the hostile inputs that its growth is measured by.

A case is one way in from outside: a body, a packet, a file, a header. What it calls further in is covered by it: the
rule in `readers` finds every function that reads, and each has to run in a case or stand in `EXEMPT` with its reason.
"""

# ruff: noqa: PLC0415, PLW0108 - one folder's modules at a time: their names are alike, and few tests import them all

import ast
import asyncio
import importlib
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests import ROOT
from tests.growth.shapes import BARE, JSON_FRAMES, Frame, Shape, list_shapes

KIB = 1 << 10
MIB = 1 << 20
# What is short by its way in: the largest bytes a byte are those of a text that Python stores four bytes a sign.
HEADER: dict[str, Any] = {
    "limit": 8190,
    "bytes_per_byte": 64,
    "why": "a line of a head, of which 8,190 bytes are taken",
}
SETTING: dict[str, Any] = {"limit": 128 * KIB, "bytes_per_byte": 64, "why": "an operator's option, setting or invite"}


@dataclass(frozen=True)
class Case:
    """One way in: `read` takes the bytes that came. `limit`: bytes beyond which it, or its caller, reads nothing.

    `valid`: sound inputs, by which the functions behind it are reached. `bytes_per_byte`: of memory; above 8 only with
    a `limit` and a `why`: their product is what one input can take.
    """

    name: str
    read: Callable[[bytes], Any]
    frames: tuple[Frame, ...] = BARE
    valid: tuple[bytes, ...] = ()
    limit: int = 1 << 40
    text: bool = True
    json: bool = False
    binary: bool = False
    bytes_per_byte: float = 8.0
    why: str = ""
    extra: tuple[Shape, ...] = ()

    def shapes(self) -> Iterator[Shape]:
        yield from self.extra
        yield from list_shapes(self.frames, text=self.text, json=self.json, binary=self.binary)


def as_text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """Feed a reader of text: bytes that are no UTF-8 come as they would from the command line or a header."""
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


@cache
def folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="growth")
    _HELD.append(made)
    return Path(made.name)


_HELD: list[Any] = []


def as_file(read: Callable[[Path], Any], name: str) -> Callable[[bytes], Any]:
    """Feed a reader of files, private ones by their mode."""

    def feed(data: bytes) -> Any:
        path = folder() / name
        path.touch(mode=0o600)
        path.write_bytes(data)
        return read(path)

    return feed


def in_pieces(take: Callable[[], Callable[[bytes], Any]], size: int = 16) -> Callable[[bytes], None]:
    """Feed a reader that takes its input as it comes, in small pieces."""

    def feed(data: bytes) -> None:
        receive = take()
        for at in range(0, len(data), size):
            receive(data[at : at + size])

    return feed


def exhaust(read: Callable[[bytes], Any]) -> Callable[[bytes], int]:
    return lambda data: sum(1 for _ in read(data))


def frame(head: str, tail: str = "") -> Frame:
    return Frame(head.encode(), tail.encode())


def list_cases() -> list[Case]:
    """Return the cases of every folder."""
    return [
        *_list_wire(),
        *_list_models(),
        *_list_policies(),
        *_list_agent(),
        *_list_hub(),
        *_list_gateway(),
        *_list_client(),
    ]


def json_case(name: str, read: Callable[[bytes], Any], *frames: Frame, **more: Any) -> Case:
    return Case(name, read, (*JSON_FRAMES, *frames), json=True, **more)


OIP_FRAMES = (
    frame('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[', "1]}]}"),
    frame('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[[', "1]]}]}"),
    frame('{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["', '"]}]}'),
    frame('{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":[', '"a"]}]}'),
    frame('{"inputs":[{"name":"x","datatype":"UINT64","shape":[4],"data":[18446744073709551615,', "1]}]}"),
    frame('{"inputs":[{"name":"x","datatype":"FP32","shape":[', '1],"data":[1]}]}'),
    frame('{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{', '"z":1},"data":[1]}]}'),
    frame('{"inputs":[', '{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}'),
    frame('{"parameters":{', '"z":1},"inputs":[]}'),
)
OIP_VALID = (
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
    b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["a"]}]}',
    b'{"inputs":[{"name":"x","datatype":"UINT64","shape":[2],"data":[18446744073709551615,1]}]}',
)


def _list_wire() -> list[Case]:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from edge_agent.app.config import AgentConfig
    from wire.backup import restoring, sealing
    from wire.backup.archive import BackupKind
    from wire.http import access, callers, client, guards, json_scan, oip, strict_json
    from wire.ledger import checkpoint
    from wire.process import config_errors, daemon, files, proxy, support, tracing
    from wire.process.config import build_config
    from wire.process.exit_codes import ExitCode
    from wire.protocol import codec, topics
    from wire.text import decode_text
    from wire.toml import parse_toml
    from wire.transport import packets, session, websocket

    def broker() -> Callable[[bytes], Any]:
        made = session.MqttSession(packets.SessionOptions("a"), 0.0)
        made.receive_data(b"\x20\x03\x00\x00\x00")
        return made.receive_data

    def binary_inputs(data: bytes) -> None:
        for datatype, count in (("UINT8", len(data)), ("BYTES", len(data) // 5)):
            head = b'{"inputs":[{"name":"x","datatype":"%b","shape":[%d],"parameters":{"binary_data_size":%d}}]}' % (
                datatype.encode(),
                count,
                len(data),
            )
            _attempt(lambda: oip.parse_infer_request(head + data, str(len(head))))  # noqa: B023

    toml_frames = (Frame(), frame("a = [", "]"), frame('a = "', '"'), frame("a = {", "z = 1}"), frame('a = """', '"""'))
    restore = partial(restoring.RestoreRequest, kind=BackupKind.HUB)
    opening = sealing.Secrets(b"a passphrase", X25519PrivateKey.from_private_bytes(bytes(32)))
    sealed = partial(sealing._find_key, name="x", opening=opening)
    return [
        json_case(
            "Open Inference request", lambda body: oip.parse_infer_request(body, None), *OIP_FRAMES, valid=OIP_VALID
        ),
        Case(
            "Open Inference request, binary",
            binary_inputs,
            (Frame(), Frame(b"\1\0\0\0a")),
            text=False,
            binary=True,
            valid=(b"\1\0\0\0a",),
        ),
        json_case(
            "JSON of callers",
            handled(strict_json.parse_strict_json),
            limit=16 * KIB,
            bytes_per_byte=64,
            why="decoded as Python's values: the routes of the hub read 16 KiB, a job its fields without its request",
        ),
        json_case("a scan of JSON", exhaust(json_scan.scan_json), valid=(b'{"\\u0061":1}',)),
        Case("UTF-8", json_scan.is_utf8, (Frame(), Frame(b"\xc3\xa9"))),
        json_case(
            "a server's reply",
            lambda body: client.HttpReply(200, body).json_object(),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="a command reads the reply of its own agent or hub; at most MAX_REPLY_BYTES",
        ),
        Case(
            "addresses of proxies",
            as_text(
                lambda text: callers.find_address(
                    "10.0.0.1", callers._split([text]), access.parse_networks(["10.0.0.0/8"])
                )
            ),
            (Frame(), frame("10.0.0.1,", ",10.0.0.1")),
            **HEADER,
        ),
        Case("networks", as_text(lambda text: access.parse_networks([text])), **SETTING),
        Case("Forwarded", as_text(callers._find_for), (Frame(), frame("for="), frame('for="', '"')), **HEADER),
        Case("Host", as_text(guards._parse_host_name), (Frame(), frame("[", "]")), **HEADER),
        Case("Origin", as_text(lambda text: guards._same_origin(text, "a")), (Frame(), frame("http://")), **HEADER),
        Case("traceparent", as_text(tracing.parse_traceparent), **HEADER),
        Case(
            "a checkpoint",
            as_text(lambda text: checkpoint.open_checkpoint(text, bytes(32))),
            (
                Frame(),
                frame("a\n1\n" + "A" * 43 + "=\n", "\n\n— a b\n"),
                frame("a\n1\n" + "A" * 43 + "=\n\n— a ", "\n"),
            ),
            valid=(("a\n1\n" + "A" * 43 + "=\n\n— a QUFBQQ==\n").encode(),),
        ),
        Case(
            "a head of HTTP",
            proxy.parse_http_head,
            (Frame(), frame("HTTP/1.1 200 OK\r\n")),
            limit=proxy.MAX_HEAD_BYTES,
            bytes_per_byte=64,
            why="a field name of one sign is an entry of a dictionary; 16 KiB are read",
        ),
        Case("a support archive's text", as_text(support.redact)),
        Case(
            "a message of msgspec",
            as_text(config_errors.split_error),
            (Frame(), frame("x - at `$", "`")),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="the path of a key of the configuration, which has at most 1 MiB",
        ),
        Case("a text", decode_text),
        json_case(
            "a variable of the environment",
            as_text(lambda text: build_config(AgentConfig, {}, None, {"SKERRY_AGENT_OUTPUT": text})),
            limit=128 * KIB,
            bytes_per_byte=64,
            why="the operator's own, which Linux bounds",
        ),
        Case(
            "TOML",
            as_text(parse_toml),
            toml_frames,
            json=True,
            limit=1 * MIB,
            bytes_per_byte=64,
            why="values of Python's parser; MAX_TOML_CHARS is 1 MiB, and configuration and policies are an operator's",
        ),
        Case(
            "a TOML file",
            as_file(partial(files.read_toml_file, code=ExitCode.CONFIG), "x.toml"),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="as TOML",
        ),
        Case("a private text", as_file(files.read_private_text, "token")),
        Case("a file of text", as_file(partial(files.read_file_text, code=ExitCode.CONFIG), "text")),
        Case("the owner of a lock", as_file(lambda path: daemon.read_lock_owner(path.parent), "lock")),
        Case(
            "a frame",
            codec.split_frame,
            (Frame(), Frame(b"\x01\x01\x00\x40")),
            text=False,
            binary=True,
            limit=codec.MAX_FRAME_BYTES,
        ),
        *(
            Case(
                f"{read.__name__.removeprefix('decode_')}",
                read,
                (Frame(), Frame(b"\x96"), Frame(b"\x9f")),
                text=False,
                binary=True,
                limit=codec.MAX_FRAME_BYTES,
                bytes_per_byte=24,
                why="lists of empty values as Python's: 128 KiB of a signed sender make 3 MiB, for one frame at a time",
                extra=(Shape("a list of empty digests", _make_frame_list),),
            )
            for read in (codec.decode_escalation, codec.decode_verdict, codec.decode_up_note, codec.decode_down_note)
        ),
        Case("a topic", as_text(topics.parse_up_topic), (Frame(), frame("v1/00/"))),
        *(
            Case(
                f"MQTT packet of type {kind}",
                partial(_read_packet, packets.read_packet, kind),
                (Frame(), Frame(head)),
                text=False,
                binary=True,
                limit=codec.MAX_FRAME_BYTES * 2,
                bytes_per_byte=24,
                why="reason codes and properties as Python's values; the largest packet is announced to the broker",
                extra=(
                    Shape(
                        "user properties", partial(_make_properties, head[:-2] if head.endswith(b"\xff\x7f") else head)
                    ),
                ),
            )
            for kind, head in (
                (0x30, b"\0\1a\xff\x7f"),
                (0x32, b"\0\1a\0\1\0"),
                (0x90, b"\0\1\0"),
                (0x40, b"\0\1\0\xff\x7f"),
                (0x20, b"\0\0\xff\x7f"),
                (0xE0, b"\0\xff\x7f"),
                (0xB0, b"\0\1\0"),
            )
        ),
        Case("what a broker sends", in_pieces(broker), (Frame(), Frame(b"\x30\xff\xff\x7f\x00\x01a\x00")), binary=True),
        Case(
            "what a broker sends at once",
            lambda data: broker()(data),
            (Frame(), Frame(b"\x30\xff\xff\x7f\x00\x01a\x00")),
            binary=True,
            bytes_per_byte=200,
            limit=256 * KIB,
            why="messages of two bytes; a read takes 256 KiB at most",
        ),
        Case(
            "WebSocket frames",
            in_pieces(lambda: websocket.FrameReader().feed),
            (Frame(), Frame(b"\x82\x7f\0\0\0\0\0\1\0\0")),
            binary=True,
        ),
        Case(
            "WebSocket frames at once",
            lambda data: websocket.FrameReader().feed(data),
            (Frame(), Frame(b"\x02\x01a")),
            binary=True,
        ),
        Case(
            "a backup",
            as_file(lambda path: restoring.read_configuration(restore(path)), "x.backup"),
            binary=True,
            valid=tuple(file.read_bytes() for file in sorted((ROOT / "tests/vectors/backups").glob("*.backup"))),
        ),
        json_case(
            "a backup's manifest",
            lambda data: restoring._read_manifest(io.BytesIO(data), restore(Path("x"))),
            frame('{"format":1,"files":{', '"z":{"size":1,"sha256":""}}}'),
            limit=64 * MIB,
            bytes_per_byte=64,
            why="the operator's own backup, which was sealed by its passphrase or key, or read from a disk of theirs",
        ),
        json_case(
            "a backup's first line",
            sealed,
            limit=4096,
            bytes_per_byte=64,
            why="JSON as Python's values",
            valid=(b'{"seal":"passphrase","n":2,"r":8,"salt":"00"}', b'{"seal":"recipient","key":"AAAA"}'),
        ),
        Case("a passphrase", as_file(sealing.read_passphrase, "passphrase")),
        Case(
            "a recipient's key",
            as_file(sealing.load_recipient, "x.pem"),
            (Frame(), frame("-----BEGIN PUBLIC KEY-----\n", "\n-----END PUBLIC KEY-----\n")),
        ),
        Case(
            "a private key",
            as_file(sealing.load_identity_key, "y.pem"),
            (Frame(), frame("-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----\n")),
        ),
        Case("blocks of a stream", lambda data: sum(len(each) for each in _blocks(data))),
    ]


def _make_frame_list(size: int) -> bytes:
    return b"\x96" + msgspec.msgpack.encode("f") + b"\1\xa1h\0\1" + msgspec.msgpack.encode([b""] * (size // 2))


def _make_properties(head: bytes, size: int) -> bytes:
    from wire.transport import packets

    properties = b"\x26\0\1a\0\1a" * (size // 7)
    return head + packets._length(len(properties)) + properties


def _make_onnx_numbers(size: int) -> bytes:
    """Nest a list of numbers in a tensor of a graph."""
    body = b"\x01" * size
    for number in (1, 5, 7):
        left, length = len(body), bytearray()
        while left >> 7:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        body = bytes([number << 3 | 2]) + length + bytes([left]) + body
    return body


def _blocks(data: bytes) -> Iterator[bytes]:
    from wire.backup.archive import read_blocks

    return read_blocks(io.BytesIO(data).read)


def _read_packet(read: Callable[[int, bytes], Any], kind: int, body: bytes) -> Any:
    return read(kind, body)


def handled(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Feed a reader whose every caller takes a RecursionError as what its decoder raises."""

    def feed(data: bytes) -> Any:
        try:
            return read(data)
        except RecursionError:
            return None

    return feed


def _attempt(read: Callable[[], Any]) -> None:
    try:
        read()
    except Exception:  # noqa: BLE001 - a refusal is an answer
        return


def _list_models() -> list[Case]:
    from tuf.api.metadata import Root

    from models.bundle import archive, hub_part, manifest, preparation, text_part, thresholds
    from models.runtime import codec_ans, codec_steps, picture_files, sound_files, text
    from models.signing import keyring, request, roles
    from models.update import client, downloader, partial_download, tuf_view
    from models.verification import compatibility, onnx_reader
    from wire.http.client import find_redirect, parse_http_url
    from wire.process.files import MAX_FILE_BYTES
    from wire.protocol.messages import TensorDType

    vectors = ROOT / "tests/vectors"
    manifests = tuple(file.read_bytes() for file in sorted((vectors / "bundles").glob("manifest-*.json")))
    root = (vectors / "tuf/first-root.json").read_bytes()
    head = manifests[0].rstrip().removesuffix(b"}") + b","
    spec = manifest.InputSpec("x", TensorDType.UINT8, (1 << 20,), 0, 255)
    wav = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\xff\xff\xff\xff"
    custom = as_json(lambda values: compatibility.check_custom(values, compatibility.read_host("skerry/0.2.0")))

    def unpack(data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=folder()) as made:
            archive.unpack_bundle(io.BytesIO(data), Path(made))

    with tarfile.open(vectors / "bundles/echo-2.skb") as packed:
        entry = packed.extractfile("edge.onnx")
        graph = entry.read() if entry else b""
    png = (0).to_bytes(4, "big") + b"tEXt" + (0xB9E3EB18).to_bytes(4, "big")
    return [
        json_case(
            "a bundle's manifest",
            manifest.decode_manifest,
            Frame(head, b'"z":0}'),
            Frame(b'{"format":1,"labels":[', b'"z"]}'),
            Frame(b'{"format":1,"files":{', b'"z":"z"}}'),
            valid=manifests,
            limit=manifest.MAX_MANIFEST_BYTES,
            bytes_per_byte=24,
            why="labels and files of a manifest of 1 MiB",
        ),
        json_case(
            "a hub part's description",
            hub_part.decode_hub_manifest,
            frame('{"format":1,"files":{', '"z":{}}}'),
            valid=tuple(file.read_bytes() for file in sorted((vectors / "bundles").glob("part-*.json"))),
            limit=hub_part.MAX_PART_BYTES,
        ),
        json_case(
            "a preparation",
            preparation.decode_preparation,
            frame('{"kind":"picture",', '"z":0}'),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="a table of a configuration or a manifest, which have 1 MiB at most",
            valid=(b'{"kind":"picture"}',),
        ),
        json_case(
            "a text template",
            text_part.decode_text_template,
            valid=((vectors / "bundles/text.json").read_bytes(),),
            limit=text_part.MAX_TEXT_FILE_BYTES,
        ),
        json_case(
            "thresholds",
            thresholds.decode_thresholds,
            frame('{"format":1,"classes":{', '"z":0.5}}'),
            limit=thresholds.MAX_BYTES,
        ),
        Case(
            "a packed bundle",
            unpack,
            (Frame(), Frame(archive._build_header("edge.onnx", 0))),
            binary=True,
            valid=((vectors / "bundles/echo-2.skb").read_bytes(),),
        ),
        Case(
            "an ONNX graph",
            onnx_reader.read_onnx_model,
            (Frame(), Frame(b"\x3a\xff\xff\x03"), Frame(b"\x08\x08")),
            binary=True,
            limit=96 * MIB,
            bytes_per_byte=180,
            valid=(graph,),
            extra=(Shape("dimensions of a tensor", _make_onnx_numbers),),
            why="at most MAX_FIELDS steps are spent, which bounds its memory to 100 MiB; first read in a sandbox",
        ),
        Case("tables of range coding", codec_ans.read_ans_tables, (Frame(), Frame(codec_ans._MAGIC)), binary=True),
        Case("tables of steps", codec_steps.read_step_tables, (Frame(), Frame(codec_steps._MAGIC)), binary=True),
        Case(
            "a WAV file",
            sound_files.decode_wav,
            (Frame(), Frame(wav), Frame(wav[:12])),
            binary=True,
            bytes_per_byte=16,
            limit=sound_files.MAX_SOUND_FILE_BYTES,
            why="8-bit samples become float32, and a mean of channels beside them",
        ),
        Case(
            "a picture",
            picture_files.decode_picture,
            (
                Frame(),
                Frame(b"\x89PNG\r\n\x1a\n"),
                Frame(b"\xff\xd8\xff"),
                Frame(b"II*\0\x08\0\0\0\xff\xff"),
                Frame(b"MM\0*\0\0\0\x08"),
            ),
            binary=True,
        ),
        Case("a text for a model", lambda data: text.encode_text(data, spec), (Frame(),)),
        json_case(
            "a sealed key",
            lambda data: keyring.unseal_key(keyring.SealedKey("a", "root", b"", data), b"x"),
            frame('{"sealed":"', '"}'),
            frame('{"sealed":"","kdf":{', '"z":0}}'),
            limit=MAX_FILE_BYTES,
            bytes_per_byte=64,
            why="JSON as Python's values; MAX_FILE_BYTES of a person's own file",
        ),
        json_case(
            "a key file",
            as_file(lambda path: keyring._read_key(path, "root"), "root-1.key"),
            limit=MAX_FILE_BYTES,
            bytes_per_byte=64,
            why="as a sealed key",
        ),
        json_case(
            "metadata of a role",
            lambda data: request.decode_metadata(data, Root),
            Frame(root.rstrip().removesuffix(b"}") + b",", b'"z":0}'),
            valid=(root,),
            limit=MAX_FILE_BYTES,
            bytes_per_byte=64,
            why="the TUF library decodes to Python's values",
        ),
        json_case(
            "a hub's exported state",
            request.load_state,
            frame(f'{{"format":"{request.HUB_FORMAT}","online":{{', '"z":0}}'),
            frame(f'{{"format":"{request.HUB_FORMAT}","online":{{}},"roots":[', "0]}"),
            limit=MAX_FILE_BYTES,
            bytes_per_byte=64,
            why="as metadata",
        ),
        json_case(
            "a request to sign",
            request.load_request,
            frame(f'{{"format":"{request.REQUEST_FORMAT}","changes":{{', '"z":0}}'),
            limit=MAX_FILE_BYTES,
            bytes_per_byte=64,
            why="as metadata",
        ),
        Case("a role's name", as_text(roles.parse_role), **SETTING),
        json_case(
            "a permit",
            as_json(lambda values: roles.read_permit("a", values)),
            frame('{"permit":{', '"z":0}}'),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="part of metadata",
        ),
        json_case(
            "root metadata", tuf_view.parse_root, valid=(root,), limit=1 * MIB, bytes_per_byte=64, why="as metadata"
        ),
        json_case("a cached role's version", handled(client._metadata_version), limit=1 * MIB),
        json_case("a bundle's requirements", custom, limit=1 * MIB, bytes_per_byte=64, why="part of metadata"),
        Case("a version", as_text(compatibility._parse_version), **HEADER),
        Case("an address of a repository", as_text(parse_http_url), (Frame(), frame("http://")), **SETTING),
        Case(
            "a redirect",
            as_text(lambda text: find_redirect("http://a/b", text)),
            (Frame(), frame("http://")),
            limit=64 * KIB,
            bytes_per_byte=64,
            why="a line of a head, of which Python's HTTP client takes 64 KiB",
        ),
        Case("Content-Range", as_text(lambda text: downloader._CONTENT_RANGE.fullmatch(text)), limit=65536),
        Case("an entity tag", as_file(partial_download._read_tag, "tag")),
        Case("a plain PNG", _decode_plain_png, (Frame(), Frame(b"\x89PNG\r\n\x1a\n")), binary=True, valid=(png,)),
    ]


def as_json(read: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """Feed a reader of values that JSON was decoded to."""
    return lambda data: read(_decode_json(data))


def _decode_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _decode_plain_png(data: bytes) -> Any:
    from edge_agent.sources.files.image_files import decode_png

    return decode_png(data, (16, 16, 1))


def _list_policies() -> list[Case]:
    from policies.analysis import facts, probes
    from policies.decisions import egress
    from policies.language import document
    from policies.rollout_rules import plan

    policy = (ROOT / "policies/templates/demo.toml").read_bytes()
    probe = ROOT / "policies/templates/demo.probes.toml"
    return [
        json_case(
            "facts of a sample",
            as_json(facts.parse_facts),
            frame('{"fields":[', "0]}"),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="an operator's own file",
        ),
        Case("a time of the week", as_text(facts.parse_minute), (Frame(), frame("wed ")), limit=1 * MIB),
        Case(
            "probes",
            as_text(probes.parse_probes),
            (Frame(), frame("[[case]]\n")),
            json=True,
            limit=1 * MIB,
            bytes_per_byte=64,
            why="TOML, an operator's own file",
            valid=(probe.read_bytes(),) if probe.exists() else (),
        ),
        Case(
            "a policy",
            document.parse_policy,
            (Frame(), Frame(policy), frame("a = [", "]"), frame('layer = "', '"'), frame('mode = "', '"')),
            json=True,
            limit=document.MAX_POLICY_CHARS,
            bytes_per_byte=64,
            valid=(policy,),
            why="TOML of an operator of the hub or the device",
        ),
        Case(
            "a text to redact",
            lambda text: egress.redact_text(text, list(egress.REDACTION_PATTERNS)),
            (Frame(), Frame(b"a@"), Frame(b"\xc3")),
        ),
        json_case(
            "rules of a rollout",
            as_json(plan.parse_rules),
            frame('{"waves":[', '"1"]}'),
            frame('{"waves":["', '"]}'),
            limit=16 * KIB,
            bytes_per_byte=64,
            why="a body of at most 16 KiB",
            valid=(b'{"waves":["1","10%"]}',),
        ),
        json_case(
            "stored rules of a rollout",
            as_json(plan.parse_stored_rules),
            limit=16 * KIB,
            bytes_per_byte=64,
            why="as above",
        ),
        Case(
            "a choice of devices",
            as_text(plan.DeviceSelector.parse),
            (Frame(), frame("class="), frame("a=b,")),
            limit=16 * KIB,
            bytes_per_byte=64,
            why="part of a body of at most 16 KiB",
            valid=(b"class=a|b,region=c",),
        ),
    ]


def _list_agent() -> list[Case]:
    from cryptography.hazmat.primitives.asymmetric import ec

    from edge_agent import __main__ as main
    from edge_agent.api import answers, oip, service
    from edge_agent.app import config
    from edge_agent.cli import client, policy, policy_check, policy_files
    from edge_agent.doctor import network
    from edge_agent.identity import certificates, enrollment, hubs, identity
    from edge_agent.inference import class_threshold
    from edge_agent.ledger_audit import export, proof, verify
    from edge_agent.outputs import webhook
    from edge_agent.sources import json_lines, sensor_payload
    from edge_agent.sources.cameras import camera, messages
    from edge_agent.sources.files import image_files
    from edge_agent.system import environment, http, policy_layers, site_broker
    from models.bundle.manifest import InputSpec
    from models.bundle.preparation import PicturePreparation
    from wire.protocol.messages import TensorDType

    numbers = InputSpec("x", TensorDType.FP32, (4,), 0, 1)
    pixels = InputSpec("x", TensorDType.UINT8, (16, 16), 0, 255)
    signals = sensor_payload.JsonPayload(["x.a", "x.b"], "t", sensor_payload.TimeUnit.S)
    rows = sensor_payload.JsonPayload(["x"], "", sensor_payload.TimeUnit.S)
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = (Frame(), frame("-----BEGIN CERTIFICATE-----\n", "\n-----END CERTIFICATE-----\n"))
    npy = b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"

    def lines(data: bytes) -> None:
        path = folder() / "lines.jsonl"
        path.write_bytes(data)

        async def read() -> None:
            with path.open("rb") as file:
                async for _ in json_lines.read_lines(file.fileno()):
                    pass

        asyncio.run(read())

    def sense(data: bytes) -> None:
        _attempt(lambda: rows.read(data, 2))
        signals.read(data, 2)

    def line(data: bytes) -> None:
        json_lines._parse_values(json_lines._parse_line(data).x, numbers)

    return [
        json_case(
            "true label of an answer",
            lambda data: service.parse_truth(msgspec.json.decode(data, type=answers._FeedbackBody).truth, None),
            limit=answers.MAX_FEEDBACK_BYTES,
        ),
        json_case(
            "data class of a request",
            as_json(lambda values: (oip._parse_data_class(values, ""), oip._parse_subject(values))),
            frame('{"data_class":"', '"}'),
            limit=4 * MIB,
            bytes_per_byte=64,
            why="parameters are decoded by the request's parser",
            valid=(b"{}",),
        ),
        Case("trace of a request", as_text(service.parse_trace_id), **HEADER),
        Case("seconds of a command", as_text(main._parse_seconds), **SETTING),
        Case(
            "agent.toml",
            as_file(lambda path: (config.load_proxy(path), config.load_config(path)), "agent.toml"),
            (
                Frame(),
                frame("[api]\n"),
                frame('[[output]]\nname = "', '"\n'),
                frame("[input]\n"),
                frame('broker = "', '"'),
            ),
            json=True,
            limit=1 * MIB,
            bytes_per_byte=64,
            why="TOML, the operator's own",
        ),
        json_case(
            "the running agent's address", as_file(lambda path: client.find_running_agent(path.parent), "api.json")
        ),
        json_case(
            "a sample of the policy commands",
            as_text(policy_files.read_sample),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="an option of the operator's own command",
        ),
        json_case(
            "facts of the policy commands",
            as_text(policy._parse_facts),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="as above",
        ),
        Case(
            "a policy's file",
            as_file(lambda path: policy_files.read_policy([path]), "p.toml"),
            limit=256 * KIB,
            bytes_per_byte=64,
            why="as a policy",
        ),
        Case(
            "a probes' file",
            as_file(policy_files.read_probes, "p.probes.toml"),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="as probes",
        ),
        Case("a level", as_text(policy_check._parse_level)),
        Case(
            "a date",
            as_text(network._read_date),
            limit=64 * KIB,
            bytes_per_byte=64,
            why="a line of a head, of which Python's HTTP client takes 64 KiB",
        ),
        json_case(
            "a hub's reply to an invite",
            lambda data: certificates.verify_reply(data, "a", key, lambda _: []),
            frame('{"body":"', '","signature":""}'),
            frame('{"signature":"', '","body":"{}"}'),
            limit=256 * KIB,
        ),
        Case("an invite", as_text(enrollment.read_invite), (Frame(), frame("skerry1:")), **SETTING),
        Case("keys under way", as_file(enrollment._read_pending, "pending"), binary=True),
        json_case(
            "hub keys of a region",
            lambda data: (hubs.read_committed_version(data, "a"), hubs.parse_hub_keys(data, "a")),
            frame('{"region":"a","hubs":[', "0]}"),
            frame('{"committed":{', '"z":1}}'),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="signed by the fleet's keys, at most MAX_DOCUMENT_BYTES",
        ),
        json_case(
            "identity.json",
            as_file(identity._read_identity_file, "identity.json"),
            frame('{"format":1,"hubs":[', "0]}"),
        ),
        Case("certificates of a text", as_text(lambda text: identity.split_pem(text, "a")), pem),
        json_case("an edition of thresholds", as_file(class_threshold.load_thresholds, "t.json")),
        Case("a counter", as_file(class_threshold._read_counter, "counter")),
        json_case(
            "an export of the ledger", as_file(lambda path: export.read_export(path, _NO_IDENTITY), "ledger.jsonl")
        ),
        json_case(
            "a proof",
            proof.parse_proof,
            frame('{"skerry_proof":1,"entries":[', "0]}"),
            limit=1 << 30,
            valid=((ROOT / "tests/vectors/proof.json").read_bytes(),),
        ),
        Case("a level's name", as_text(proof.parse_level)),
        json_case(
            "a hub's export", as_file(verify.read_hub_export, "heads.json"), frame('{"hub":"a","heads":[', "0]}")
        ),
        Case("a key", as_text(verify.parse_key), **SETTING),
        Case("a time", as_text(lambda text: verify.parse_time_ms(text, 0)), **SETTING),
        Case("a secret of a webhook", webhook.decode_secret, (Frame(), frame("whsec_"))),
        Case("Retry-After of an output", as_text(webhook._read_retry_after), **HEADER),
        Case(
            "a camera's picture",
            lambda data: camera._parse_picture(data, pixels, PicturePreparation(width=16, height=16), pixels),
            binary=True,
        ),
        Case(
            "a message of the camera's process",
            messages.decode_camera_message,
            (Frame(), Frame(b"\x82\xa4type\xa7picture")),
            binary=True,
        ),
        Case(
            "a .npy file",
            lambda data: image_files.parse_sample_file("a.npy", data, numbers),
            (Frame(), Frame(npy), frame("\x93NUMPY"), Frame(b"\x93NUMPY\x02\0\xff\xff\0\0{", b"}")),
            binary=True,
            valid=(npy.ljust(128) + bytes(16),),
        ),
        Case(
            "a .png file",
            lambda data: image_files.parse_sample_file("a.png", data, pixels),
            (Frame(), Frame(b"\x89PNG\r\n\x1a\n")),
            binary=True,
            valid=(_make_png(),),
        ),
        Case("lines of a pipe", lines),
        json_case(
            "a line of samples",
            line,
            frame('{"x":[', "1]}"),
            frame('{"x":[[', "1]]}"),
            valid=(b'{"x":[1,0,0,0]}',),
            limit=json_lines.MAX_LINE_BYTES,
        ),
        json_case(
            "a line of text",
            lambda data: json_lines._parse_text(msgspec.Raw(data), numbers),
            limit=json_lines.MAX_LINE_BYTES,
        ),
        json_case(
            "a sensor's JSON",
            sense,
            frame('{"x":[', "1]}"),
            frame('{"x":{"a":[', '1],"b":1},"t":1}'),
            frame('{"x":{"a":1,"b":1},"t":[', "1]}"),
            frame('{"x":[[1,2],', "[1,2]]}"),
            valid=(b'{"x":{"a":[1],"b":[2]},"t":["2026-01-01"]}', b'{"x":[[1,2]]}'),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="[[sensor]] max_bytes is 1 MiB at most, 256 KiB unless set, and one message at a time",
        ),
        Case(
            "a sensor's numbers",
            lambda data: sensor_payload.BinaryPayload("<hh", 0, sensor_payload.TimeUnit.S).read(_cut_steps(data), 1),
            binary=True,
            bytes_per_byte=64,
            limit=4 * 65536,
            why="a piece of its numbers as Python's, then float64; at most MAX_STEPS_A_MESSAGE steps of one message",
        ),
        Case("a path in a message", as_text(sensor_payload.parse_path), (Frame(), frame("a")), **SETTING),
        Case("a layout", as_text(sensor_payload.check_layout), (Frame(), frame("<")), **SETTING),
        Case("a number of the machine", as_file(environment.read_line, "line")),
        Case("an address of a hub", as_text(http.split_address), (Frame(), frame("https://")), **SETTING),
        Case("an address of a broker", as_text(site_broker.parse_broker), (Frame(), frame("mqtt://")), **SETTING),
        Case(
            "layers of a policy",
            as_text(lambda text: policy_layers.parse_layers([text], airgap=False)),
            (Frame(), frame("tuf:")),
        ),
    ]


class _NoIdentity:
    """Stands where a signature is checked that no hostile file has."""


_NO_IDENTITY: Any = _NoIdentity()


def _make_png() -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16) // 3).save(made, "PNG")
    return made.getvalue()


def _cut_steps(data: bytes) -> bytes:
    """Return whole steps of 4 bytes: a message of another length is refused before it is read."""
    return data[: len(data) // 4 * 4]


def _list_hub() -> list[Case]:
    from urllib.parse import parse_qs

    from cloud_hub.api import jobs, language_models, routing
    from cloud_hub.cli import checkpoint_shape, devices, options, rollout
    from cloud_hub.console.sign_in import MAX_FORM_BYTES
    from cloud_hub.engine import devices as machine
    from cloud_hub.engine.sharded import protocol
    from cloud_hub.engine.sharded.cluster import messages
    from cloud_hub.enrollment import enrollment, erasure
    from cloud_hub.jobs import addresses
    from cloud_hub.jobs.batches import split_lines
    from cloud_hub.jobs.decisions import BatchLimits
    from cloud_hub.region import vault
    from cloud_hub.registry import audit
    from cloud_hub.repository import parts
    from cloud_hub.security import authorities, authority, hub_keys

    def batch(size: int) -> Callable[[bytes], None]:
        def feed(data: bytes) -> None:
            async def send() -> AsyncIterator[bytes]:
                for at in range(0, len(data), size):
                    yield data[at : at + size]

            async def read() -> None:
                limits = BatchLimits(max_bytes=1 << 30, max_line_bytes=1 << 30)
                async for _ in split_lines(send(), limits):
                    pass

            asyncio.run(read())

        return feed

    certificate = (Frame(), frame("-----BEGIN CERTIFICATE-----\n", "\n-----END CERTIFICATE-----\n"))
    key = (Frame(), frame("-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----\n"))
    requests = [
        json_case(
            f"body of {kind.__name__}",
            partial(routing.parse_json, kind=kind),
            limit=routing.MAX_JSON_BYTES,
            bytes_per_byte=64,
            why="16 KiB of JSON as Python's values: 1 MiB",
        )
        for kind in find_body_types()
    ]
    return [
        *requests,
        json_case(
            "body of a job",
            jobs.parse_job_request,
            frame('{"model":"a","request":[', "1]}"),
            frame('{"model":"', '","request":1}'),
            frame('{"model":"a","request":1,"webhook":"', '"}'),
            valid=(b'{"model":"a","request":{}}',),
            limit=16 * MIB,
        ),
        json_case("a hub's refusal", language_models._read_line, limit=1 * MIB),
        Case(
            "fields of a form",
            as_text(lambda text: parse_qs(text, keep_blank_values=True, max_num_fields=8)),
            (Frame(), frame("a=")),
            limit=MAX_FORM_BYTES,
            bytes_per_byte=200,
            why="per cents are split off one by one; a form has 4 KiB at most",
        ),
        Case("a batch in pieces", batch(16)),
        Case("a batch at once", batch(64 * KIB)),
        Case(
            "an address of a webhook",
            as_text(addresses.is_outward),
            (Frame(), frame("https://")),
            limit=16 * KIB,
            bytes_per_byte=64,
            why="a webhook's address within a job, of at most MAX_URL_CHARS",
        ),
        Case(
            "hub.toml",
            as_file(lambda path: options.load_config(path, None), "hub.toml"),
            (Frame(), frame("[api]\n"), frame('name = "', '"\n')),
            json=True,
            limit=1 * MIB,
            bytes_per_byte=64,
            why="TOML, the operator's own",
        ),
        Case("a span of time", as_text(lambda text: options.parse_span(text, "--x")), **SETTING),
        Case(
            "parameters of a rollout",
            as_text(lambda text: rollout.parse_parameters([text])),
            (Frame(), frame("a="), frame("a.")),
            json=True,
            limit=128 * KIB,
            bytes_per_byte=300,
            why="an option of the operator's own command, which Linux bounds",
        ),
        json_case(
            "a checkpoint's configuration",
            as_file(lambda path: checkpoint_shape.read_planned_checkpoint(path.parent), "config.json"),
            frame('{"model_type":"llama",', '"z":0}'),
            limit=64 * MIB,
            bytes_per_byte=64,
            why="an operator's own checkpoint",
        ),
        json_case(
            "a file of heads",
            devices._is_heads_file,
            limit=256 * MIB,
            bytes_per_byte=64,
            why="an operator's own former result",
        ),
        Case(
            "memory of the machine",
            as_file(lambda path: machine.read_host_memory(path, path), "meminfo"),
            limit=4 * KIB,
            bytes_per_byte=200,
            why="the kernel writes it",
        ),
        json_case("an order to Ray's driver", handled(messages.decode_order), limit=1 * MIB),
        json_case("a report of Ray's driver", handled(messages.decode_report), limit=1 * MIB),
        Case(
            "serial numbers",
            as_file(enrollment._read_serials, "serials"),
            limit=enrollment.MAX_FILE_BYTES,
            bytes_per_byte=64,
            why="an operator's own list",
        ),
        Case("base64 of an enrolment", as_text(lambda text: enrollment._decode_exact(text, "a", 32)), limit=16 * KIB),
        Case(
            "a question's name",
            as_text(lambda text: erasure._parse_name("a--b", text)),
            limit=16 * KIB,
            bytes_per_byte=16,
            why="an entry of a body of at most 16 KiB",
        ),
        Case("a region's key", as_file(vault.load_region_key, "region.key")),
        json_case(
            "the audit log",
            lambda data: list(audit._parse_entries(audit._read_lines(_write("audit", data)))),
            limit=8 * MIB,
            bytes_per_byte=64,
            why="the hub's own lines, two files of at most max_bytes",
        ),
        json_case(
            "files of a hub part",
            parts.list_part_files,
            frame('{"files":{', '"z":{"sha256":"","size_bytes":1}}}'),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="MAX_PART_BYTES, signed by the fleet's keys",
        ),
        Case(
            "a certificate request",
            authority.read_csr_key,
            (Frame(), frame("-----BEGIN CERTIFICATE REQUEST-----\n", "\n-----END CERTIFICATE REQUEST-----\n")),
            limit=authority.MAX_CSR_BYTES,
        ),
        Case(
            "a chain of certificates",
            as_file(lambda path: authority.chain_contains(path, ""), "chain.pem"),
            certificate,
        ),
        Case("a certificate", as_file(authority._load_certificate, "ca.pem"), certificate),
        Case("a CA's key", as_file(authority._load_key, "ca.key"), key),
        Case("a hub's key", as_file(hub_keys._load_key, "hub.key"), key),
        Case("a CA's subject", as_text(authorities.hash_subject_name), certificate, limit=16 * KIB),
        Case(
            "head of a rank's message",
            handled(protocol._decoder.decode),
            (Frame(), Frame(b"\x92")),
            binary=True,
            bytes_per_byte=24,
            limit=1 << 30,
            why="of the hub's own processes",
        ),
    ]


def _write(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


def find_body_types() -> list[Any]:
    """Return the types that JSON bodies of the hub are read as, wherever `read_json` or `parse_json` is called."""
    found: dict[str, Any] = {}
    for file in sorted((ROOT / "cloud_hub").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "read_json(" not in text and "parse_json(" not in text:
            continue
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and len(node.args) == 2):
                continue
            if ast.unparse(node.func) in ("read_json", "parse_json"):
                kind = getattr(module, ast.unparse(node.args[1]), None)
                if isinstance(kind, type):
                    found[kind.__name__] = kind
    return list(found.values())


def _list_gateway() -> list[Case]:
    from cloud_hub.llm import assembly, engine_errors, engine_metrics, events, job_computing, requests, responses
    from cloud_hub.llm import response_writer as writer
    from cloud_hub.llm.requests import LlmOperation

    chat = frame('{"model":"m","messages":[{"role":"user","content":"', '"}]}')
    prompt = frame('{"model":"m","prompt":[', "1]}")
    request = requests.parse_request(
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true}', LlmOperation.CHAT
    )
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"'

    def ask(body: bytes) -> None:
        for operation in LlmOperation:
            _attempt(lambda: requests.parse_request(body, operation).encode("m", stream=True))  # noqa: B023

    def assemble(data: bytes) -> None:
        assembler = assembly.AnswerAssembler(LlmOperation.CHAT, 1 << 30)
        assembler.add(data)

    return [
        json_case(
            "request of a language model",
            ask,
            chat,
            prompt,
            frame('{"model":"', '","prompt":"x"}'),
            frame('{"model":"m","prompt":"x","stop":[', '"z"]}'),
            frame('{"model":"m","stream":true,"prompt":"x","stream_options":{', '"z":1}}'),
        ),
        json_case("request of a job", lambda body: job_computing._read_request("m", body), chat),
        json_case(
            "a Responses request",
            lambda body: responses.parse_response_request(body, "a"),
            frame('{"model":"m","input":"', '"}'),
            frame('{"model":"m","input":[', '{"role":"user","content":"a"}]}'),
            frame('{"model":"m","input":"a","text":{', '"z":0}}'),
            frame('{"model":"m","input":[{"role":"user","content":[', '{"type":"input_text","text":"a"}]}]}'),
            frame('{"model":"m","input":"a","tools":[', '{"type":"function","name":"f"}]}'),
            valid=(
                (
                    b'{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],'
                    b'"tool_choice":{"type":"function","name":"f"}}'
                ),
            ),
            limit=4 * MIB,
            bytes_per_byte=64,
            why="its items as Python's values, 100,000 parts at most, so 7 MiB at most",
        ),
        json_case(
            "an engine's report",
            engine_errors.read_report,
            limit=engine_errors.MAX_ERROR_BYTES,
            bytes_per_byte=64,
            why="decoded as Python's values: 64 KiB, 4 MiB",
        ),
        Case(
            "Retry-After of an engine",
            as_text(lambda text: engine_errors.parse_retry_after(text, datetime.now(UTC))),
            (Frame(), frame("Wed, 21 Oct 2015 07:28:00 ")),
            **HEADER,
        ),
        Case(
            "an engine's metrics",
            as_text(engine_metrics.parse_metrics),
            (Frame(), frame("vllm:num_requests_running{", "} 1\n"), frame("vllm:cache_config_info{", "} 1\n")),
            limit=engine_metrics.MAX_METRICS_BYTES,
            bytes_per_byte=20,
            why="lines of three signs; an engine that the operator has named",
            valid=(b'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="16"} 1\n',),
        ),
        json_case(
            "an engine's stream in pieces",
            in_pieces(lambda: events.StreamReader(request).read),
            frame("data: "),
            Frame(chunk),
            valid=(chunk + b'a"}}]}\n\ndata: [DONE]\n\n',),
        ),
        json_case(
            "an engine's stream at once",
            lambda data: events.StreamReader(request).read(data),
            frame("data: "),
            Frame(chunk),
            frame("data: {}\n\n"),
            frame('data: {"choices":[', '0],"usage":{}}\n\n'),
            limit=256 * KIB,
            bytes_per_byte=16,
            why="events of a few bytes: a read from an engine takes 256 KiB at most",
        ),
        json_case("whether a stream tells its usage", events.tells_each_usage, frame("data: ")),
        json_case(
            "an engine's whole answer",
            events.read_whole,
            frame('{"choices":[', '0],"usage":{"prompt_tokens":1}}'),
            frame('{"choices":[],"usage":{', '"z":0}}'),
            valid=(b'{"choices":[{}],"usage":{"prompt_tokens":1}}',),
        ),
        json_case(
            "a chunk put together",
            assemble,
            frame("data: ", "\n\n"),
            frame('data: {"choices":[', "0]}\n\n"),
            frame('data: {"choices":[{"delta":{"content":"', '"}}]}\n\n'),
            limit=64 * MIB,
            bytes_per_byte=64,
            why="the answer of an engine that the operator has named, of at most max_answer_bytes",
        ),
        json_case(
            "an answer as a Responses object",
            lambda data: writer.ResponseWriter._read(writer.ResponseWriter.__new__(writer.ResponseWriter), data),
            frame('{"choices":[', "{}]}"),
            limit=64 * MIB,
            bytes_per_byte=64,
            why="the answer of an engine that the operator has named, of at most max_answer_bytes",
        ),
    ]


def _list_client() -> list[Case]:
    from skerry_client import addresses, inference
    from skerry_client.exchange import commands, events

    return [
        json_case(
            "a reply to the client",
            lambda body: commands.parse_object(body, "a"),
            limit=1 << 30,
            bytes_per_byte=64,
            why="a program reads the replies of its own agent or hub",
        ),
        json_case(
            "outputs for the client",
            lambda body: inference.read_outputs(commands.parse_object(body, "a"), "a"),
            frame('{"outputs":[', '{"name":"z","data":[1]}]}'),
            frame('{"outputs":[{"name":"z","data":[', "1]}]}"),
            limit=1 << 30,
            bytes_per_byte=64,
            why="as a reply",
        ),
        Case(
            "an address for the client",
            as_text(lambda text: addresses.parse_address(text, "agent")),
            (Frame(), frame("http://")),
            **SETTING,
        ),
        json_case(
            "an agent's address for the client",
            as_file(lambda path: addresses.find_agent(path.parent), "api.json"),
            limit=1 * MIB,
            bytes_per_byte=64,
            why="the agent's own file",
        ),
        Case(
            "events for the client in pieces",
            in_pieces(lambda: events.EventDecoder().feed),
            (Frame(), frame("data: "), frame("data: a\n"), frame("id: ")),
        ),
        Case(
            "events for the client at once",
            lambda data: events.EventDecoder().feed(data),
            (Frame(), frame("data: "), frame("data: a\n")),
        ),
    ]
