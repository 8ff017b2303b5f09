"""Process of one certificate renewal: `python -m edge_agent.identity.renewal_worker FOLDER`.

A process of its own because certificates and HTTP would cost the agent 4 MB of memory for good, for one use in about
five days.
Rule: the identity folder is the whole interface: its contents before are the request, its contents after are the
result. The identity key signs the request, so an expired certificate renews like any other.
"""

import base64
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgspec
from cryptography import x509

from edge_agent.identity.certificates import key_pem, new_key, open_letter, request_pem, unfit
from edge_agent.identity.identity import Identity, load
from edge_agent.system.http import Trust, post
from wire.http.client import HttpReply
from wire.process.exit_codes import Exit, ExitError

RENEW_TAG = b"skerry-renew/1\0"


def renew(identity: Identity) -> Identity:
    """Ask the hub for a new certificate and replace the files; returns the new identity.

    ExitError(HUB, ENROLMENT, CREDENTIALS, DISK) with the reason if it failed; then the files are as before.
    """
    if not identity.hub_url:
        raise ExitError(
            Exit.ENROLMENT, "this folder does not know its hub's address (an older version made it): enrol anew"
        )
    key = new_key()
    csr = request_pem(identity.device, key)
    pinned = identity.trusted
    reply = post(identity.hub_url, "/v1/renew", request_body(identity, csr), Trust(identity.hub_time_ms, pinned))
    if not reply.ok:
        raise _refused(reply)
    try:
        authorities = x509.load_pem_x509_certificates("".join(pinned).encode())
    except ValueError:
        raise ExitError(Exit.CREDENTIALS, f"{identity.folder}: the pinned CA is damaged; enrol again") from None
    letter = open_letter(reply.body, identity.device, key.public_key(), lambda _: authorities)
    if letter.body.request != sha256(csr).hexdigest():
        raise unfit("it answers another request")
    body = letter.body
    made = replace(
        identity,
        broker_host=body.broker.host,
        broker_port=body.broker.port,
        hub_time_ms=max(identity.hub_time_ms, body.hub_time_ms),
        hub_url=body.hub_url or identity.hub_url,
        hubs=body.hubs or identity.hubs,
        certificate_ms=letter.certificate_ms,
    )
    made.renewed(body.certificate.encode(), key_pem(key), "".join(body.authorities).encode())
    return made


def request_body(identity: Identity, csr: bytes) -> bytes:
    """The renewal request as JSON: device id, certificate request, and the identity key's signature over both."""
    text = sha256(RENEW_TAG + identity.device.encode() + b"\0" + csr).digest()
    proof = base64.b64encode(identity.signing.sign(text)).decode()
    return msgspec.json.encode({"device": identity.device, "csr": csr.decode(), "proof": proof})


def _refused(reply: HttpReply) -> ExitError:
    return ExitError(Exit.HUB, f"the hub refused ({reply.status}): {reply.error_line or 'no reason given'}")


def main() -> int:
    """Renew the identity of the folder in `sys.argv[1]`; returns the exit code.

    One line on stderr says why it is not 0. The caller holds the folder's lock.
    """
    try:
        renew(load(Path(sys.argv[1])))
    except ExitError as stop:
        print(stop, file=sys.stderr)
        return stop.code
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
