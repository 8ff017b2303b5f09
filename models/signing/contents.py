"""What a folder of keys, a signing request and a hub's export hold, as plain values. Reads public halves only."""

from typing import Any

from securesystemslib.signer import Key
from tuf.api.metadata import Metadata, Root

from models.signing import review
from models.signing.keyring import Keyring
from models.signing.request import (
    RepositoryState,
    RequestError,
    SigningRequest,
    decode_metadata,
    load_request,
    load_state,
    missing_signatures,
)
from models.signing.roles import ROOT


def load_trusted_root(ring: Keyring) -> Metadata[Root] | None:
    """Load the newest root the folder trusts. RequestError if the file is no root."""
    data = ring.read_root()
    return decode_metadata(data, Root) if data else None


def folder_fields(ring: Keyring) -> dict[str, Any]:
    """Return what a folder of keys holds, as plain values. Reads public halves only.

    `root`: version trusted here, 0 for none. `rows`: one for each key; keys of model families are not listed in root.
    """
    trusted = load_trusted_root(ring)
    known = trusted.signed.keys if trusted else {}
    rows = [
        {"key": key.name, "for": key.role, "id": key.keyid[:8], "in root": "yes" if key.keyid in known else "-"}
        for key in ring.key_files()
    ]
    return {"root": trusted.signed.version if trusted else 0, "rows": rows}


def file_fields(data: bytes) -> dict[str, Any]:
    """Return what a file holds, as plain values. RequestError if it is neither a request nor an export.

    Of a request: what it changes and who has yet to sign. Of a hub's export: its roles.
    """
    try:
        request = load_request(data)
    except RequestError:
        state = load_state(data)
        return {"rows": [_describe_role(role, found, state) for role, found in _current_metadata(state).items()]}
    rows = []
    for role in request.changes:
        able, needed = missing_signatures(request, role)
        names = ", ".join(key_names(request, role, able))
        rows.append({"role": role, "signatures missing": needed, "by any of": names})
    return {"changes": review.describe_request(request), "rows": rows}


def key_names(request: SigningRequest, role: str, keyids: frozenset[str]) -> list[str]:
    """Return the display names of these keys of a role, sorted; what no delegator of the role lists is left out."""
    keys: dict[str, Key] = {}
    for over in request.delegators(role):
        keys |= over.keys if isinstance(over, Root) else over.delegations.keys if over.delegations else {}
    return sorted(review.display_name(keys[keyid]) for keyid in keyids if keyid in keys)


def _current_metadata(state: RepositoryState) -> dict[str, Metadata[Any]]:
    """Return the metadata of a state by role, root first."""
    return {**({ROOT: state.roots[-1]} if state.roots else {}), **state.base}


def _describe_role(role: str, metadata: Metadata[Any], state: RepositoryState) -> dict[str, Any]:
    """Describe one role of a hub's export as a row."""
    at_hub = set(metadata.signatures) <= {key.keyid for key in state.online.values()}
    return {
        "role": role,
        "version": metadata.signed.version,
        "until": f"{metadata.signed.expires:%Y-%m-%d}",
        "signed": "at the hub" if at_hub else "offline",
    }
