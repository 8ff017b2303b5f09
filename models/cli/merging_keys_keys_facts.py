"""What a folder of keys, a request or a hub's export holds, as plain values. Reads public halves only."""

from typing import Any

from securesystemslib.signer import Key
from tuf.api.metadata import Metadata, Root

from models.signing import review
from models.signing.keyring import Keyring
from models.signing.merging_roles_roles import ROOT
from models.signing.request import Request, RequestError, State, decode, load_request, load_state, missing


def trusted_root(ring: Keyring) -> Metadata[Root] | None:
    """The newest root the folder trusts. RequestError if the file is no root."""
    data = ring.root()
    return decode(data, Root) if data else None


def folder_facts(ring: Keyring) -> dict[str, Any]:
    """`root`: version trusted here, 0 for none. `rows`: one for each key; families are not named by root."""
    trusted = trusted_root(ring)
    known = trusted.signed.keys if trusted else {}
    rows = [
        {"key": key.name, "for": key.role, "id": key.keyid[:8], "in root": "yes" if key.keyid in known else "-"}
        for key in ring.files()
    ]
    return {"root": trusted.signed.version if trusted else 0, "rows": rows}


def file_facts(data: bytes) -> dict[str, Any]:
    """Of a request: what it changes and who has to sign yet. Of a hub's export: its roles. RequestError otherwise."""
    try:
        request = load_request(data)
    except RequestError:
        state = load_state(data)
        return {"rows": [_role_row(role, found, state) for role, found in _standing(state).items()]}
    rows = []
    for role in request.changes:
        able, needed = missing(request, role)
        rows.append({"role": role, "signatures missing": needed, "by any of": ", ".join(names(request, role, able))})
    return {"changes": review.describe(request), "rows": rows}


def names(request: Request, role: str, keyids: frozenset[str]) -> list[str]:
    """What people call these keys of a role."""
    keys: dict[str, Key] = {}
    for over in request.delegators(role):
        keys |= over.keys if isinstance(over, Root) else over.delegations.keys if over.delegations else {}
    return sorted(review.key_name(keys[keyid]) for keyid in keyids if keyid in keys)


def _standing(state: State) -> dict[str, Metadata[Any]]:
    return {**({ROOT: state.roots[-1]} if state.roots else {}), **state.base}


def _role_row(role: str, metadata: Metadata[Any], state: State) -> dict[str, Any]:
    at_hub = set(metadata.signatures) <= {key.keyid for key in state.online.values()}
    return {
        "role": role,
        "version": metadata.signed.version,
        "until": f"{metadata.signed.expires:%Y-%m-%d}",
        "signed": "at the hub" if at_hub else "offline",
    }
