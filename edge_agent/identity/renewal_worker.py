"""Process of one certificate renewal: `python -m edge_agent.identity.renewal_worker FOLDER [PROXY CREDENTIALS_FILE]`.

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

from edge_agent.identity.certificates import (
    encode_key_pem,
    generate_key,
    make_reply_error,
    make_request_pem,
    verify_reply,
)
from edge_agent.identity.identity import Identity, load_identity
from edge_agent.system.http import HubTrust, post_to_hub
from wire.http.client import HttpReply
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.proxy import NO_PROXY, ForwardProxy

RENEW_TAG = b"skerry-renew/1\0"


def renew_certificate(identity: Identity, proxy: ForwardProxy = NO_PROXY) -> Identity:
    """Ask the hub for a new certificate and replace the files; returns the new identity. `proxy`: on the way.

    ExitError(HUB, ENROLMENT, CREDENTIALS, DISK) with the reason if it failed; then the files are as before.
    """
    if not identity.hub_url:
        raise ExitError(
            ExitCode.ENROLMENT, "this folder does not know its hub's address (an older version made it): enrol anew"
        )
    key = generate_key()
    csr = make_request_pem(identity.device, key)
    pinned = identity.trusted
    trust = HubTrust(identity.hub_time_ms, pinned)
    reply = post_to_hub(identity.hub_url, "/v1/renew", make_renewal_request(identity, csr), trust, proxy)
    if not reply.ok:
        raise _refusal_error(reply)
    try:
        authorities = x509.load_pem_x509_certificates("".join(pinned).encode())
    except ValueError:
        raise ExitError(ExitCode.CREDENTIALS, f"{identity.folder}: the pinned CA is damaged; enrol again") from None
    letter = verify_reply(reply.body, identity.device, key.public_key(), lambda _: authorities)
    if letter.body.request != sha256(csr).hexdigest():
        raise make_reply_error("it answers another request")
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
    made.replace_certificate(body.certificate.encode(), encode_key_pem(key), "".join(body.authorities).encode())
    return made


def make_renewal_request(identity: Identity, csr: bytes) -> bytes:
    """The renewal request as JSON: device id, certificate request, and the identity key's signature over both."""
    text = sha256(RENEW_TAG + identity.device.encode() + b"\0" + csr).digest()
    proof = base64.b64encode(identity.signing.sign(text)).decode()
    return msgspec.json.encode({"device": identity.device, "csr": csr.decode(), "proof": proof})


def _refusal_error(reply: HttpReply) -> ExitError:
    return ExitError(ExitCode.HUB, f"the hub refused ({reply.status}): {reply.error_line or 'no reason given'}")


def main() -> int:
    """Renew the identity of the folder in `sys.argv[1]`; returns the exit code.

    One line on stderr says why it is not 0. The caller holds the folder's lock.
    """
    try:
        renew_certificate(load_identity(Path(sys.argv[1])), ForwardProxy(*sys.argv[2:]))
    except ExitError as stop:
        print(stop, file=sys.stderr)
        return stop.code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
