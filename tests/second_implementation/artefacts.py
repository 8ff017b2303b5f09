"""Files: packed bundles, TUF metadata and sealed backups, read by the standard library and a few primitives."""

import base64
import json
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from tests.second_implementation import hpke
from tests.second_implementation.frames import verify

_BLOCK = 512

# Packed bundles: ustar in one canonical form


def pack_bundle(files: dict[str, bytes]) -> bytes:
    """The archive of a bundle's files, the manifest among them."""
    members = (_ustar_header(name, len(data)) + _fill(data) for name, data in sorted(files.items()))
    return b"".join(members) + bytes(2 * _BLOCK)


def unpack_bundle(archive: bytes) -> dict[str, bytes]:
    """The files of an archive; ValueError unless it is exactly what `pack_bundle` writes."""
    files, at = {}, 0
    while archive[at : at + _BLOCK].strip(b"\0"):
        name = archive[at : at + 100].rstrip(b"\0").decode("ascii")
        size = int(archive[at + 124 : at + 135], 8)
        files[name] = archive[at + _BLOCK : at + _BLOCK + size]
        at += _BLOCK + (size + _BLOCK - 1) // _BLOCK * _BLOCK
    if pack_bundle(files) != archive:
        raise ValueError("not in the canonical form")
    return files


def _ustar_header(name: str, size: int) -> bytes:
    """POSIX ustar: mode 0644, owners and time zero, no names of owners, no device numbers."""
    fields = (
        name.encode("ascii").ljust(100, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % size,
        b"00000000000\0", b" " * 8, b"0", bytes(100), b"ustar\x0000", bytes(32), bytes(32), bytes(8), bytes(8),
        bytes(155),
    )  # fmt: skip
    header = b"".join(fields).ljust(_BLOCK, b"\0")
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _fill(data: bytes) -> bytes:
    return data + bytes(-len(data) % _BLOCK)


def check_bundle(files: dict[str, bytes]) -> str:
    """Check the files of a bundle against its manifest; the manifest's SHA-256 in hex."""
    manifest = json.loads(files["manifest.json"])
    if {name: sha256(data).hexdigest() for name, data in files.items() if name != "manifest.json"} != manifest["files"]:
        raise ValueError("files")
    return sha256(files["manifest.json"]).hexdigest()


def digest_edge(manifest: bytes) -> str:
    """SHA-256 of a manifest with an empty `hub_part`."""
    named = json.loads(manifest)["hub_part"]
    return sha256(manifest.replace(f'"hub_part": "{named}"'.encode(), b'"hub_part": ""')).hexdigest()


def check_hub_part(manifest: bytes, part: bytes, files: dict[str, bytes]) -> None:
    """Check that a hub part and a manifest name each other, and that the part names these files."""
    edge, hub = json.loads(manifest), json.loads(part)
    if sha256(part).hexdigest() != edge["hub_part"]:
        raise ValueError("hub_part")
    if digest_edge(manifest) != hub["edge"]:
        raise ValueError("edge")
    found = {name: {"sha256": sha256(data).hexdigest(), "size_bytes": len(data)} for name, data in files.items()}
    if found != hub["files"]:
        raise ValueError("files")


# TUF metadata (specification 1.0.31), Ed25519 keys alone


def canonical_json(value: Any) -> bytes:
    """OLPC canonical JSON: sorted keys, no spaces, nothing escaped but the quote and the backslash, no fractions."""
    if isinstance(value, str):
        return b'"' + value.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'
    if isinstance(value, dict):
        return b"{" + b",".join(canonical_json(key) + b":" + canonical_json(value[key]) for key in sorted(value)) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(canonical_json, value)) + b"]"
    if isinstance(value, bool) or value is None:
        return {True: b"true", False: b"false", None: b"null"}[value]
    if isinstance(value, int):
        return str(value).encode()
    raise ValueError(f"no canonical JSON for {value!r}")


def check_tuf_role(metadata: bytes, delegator: bytes, role: str) -> dict[str, Any]:
    """The signed part of a metadata file, signed by enough keys that the delegator names for this role."""
    document, trusted = json.loads(metadata), json.loads(delegator)["signed"]
    delegation = trusted.get("delegations") if trusted["_type"] == "targets" else None
    keys = (delegation or trusted)["keys"]
    roles = {each["name"]: each for each in delegation["roles"]} if delegation else trusted["roles"]
    signed, good = canonical_json(document["signed"]), set()
    for signature in document["signatures"]:
        named = signature["keyid"]
        if named in roles[role]["keyids"] and verify(
            bytes.fromhex(keys[named]["keyval"]["public"]), bytes.fromhex(signature["sig"]), signed
        ):
            good.add(keys[named]["keyval"]["public"])
    if len(good) < roles[role]["threshold"]:
        raise ValueError(f"{role}: {len(good)} signatures")
    return dict(document["signed"])


def check_tuf_file(described: dict[str, Any], data: bytes) -> None:
    """Check a file against its entry in snapshot or targets: length and SHA-256, as far as they are named."""
    if described.get("length", len(data)) != len(data):
        raise ValueError("length")
    if described.get("hashes", {}).get("sha256", sha256(data).hexdigest()) != sha256(data).hexdigest():
        raise ValueError("hash")


# Sealed backups

MAGIC = b"skerry-backup/1\n"
_CHUNK, _TAG = 1 << 20, 16


def open_backup(data: bytes, passphrase: bytes = b"", identity: bytes = b"") -> bytes:
    """The archive in a sealed backup. `identity`: the recipient's raw X25519 key."""
    end = data.index(b"\n", len(MAGIC)) + 1
    facts = json.loads(data[len(MAGIC) : end])
    if facts["seal"] == "passphrase":
        scrypt = Scrypt(salt=bytes.fromhex(facts["salt"]), length=32, n=facts["n"], r=facts["r"], p=1)
        key = scrypt.derive(passphrase)
    else:
        key = hpke.open_sealed(base64.b64decode(facts["key"]), identity, b"skerry-backup/1 file key")
    chunks = [data[at : at + _CHUNK + _TAG] for at in range(end, len(data), _CHUNK + _TAG)]
    opened = b""
    for number, chunk in enumerate(chunks):
        nonce = number.to_bytes(11, "big") + bytes((number == len(chunks) - 1,))
        opened += AESGCM(key).decrypt(nonce, chunk, data[:end])
    return opened


def seal_backup(archive: bytes, passphrase: bytes, salt: bytes, n: int) -> bytes:
    """Seal under a passphrase with a fixed salt and cost."""
    header = MAGIC + json.dumps({"seal": "passphrase", "salt": salt.hex(), "n": n, "r": 8}).encode() + b"\n"
    cipher = AESGCM(Scrypt(salt=salt, length=32, n=n, r=8, p=1).derive(passphrase))
    pieces = [archive[at : at + _CHUNK] for at in range(0, len(archive), _CHUNK)] or [b""]
    sealed = header
    for number, piece in enumerate(pieces):
        nonce = number.to_bytes(11, "big") + bytes((number == len(pieces) - 1,))
        sealed += cipher.encrypt(nonce, piece, header)
    return sealed
