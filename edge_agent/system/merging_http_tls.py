"""TLS on a device whose wall clock nobody vouches for: pinned CAs, and hub time instead of the wall's.

Law: OpenSSL checks chain and name, but no dates (its clock may say 1970, or 2036). A server certificate is refused if
it ended before the floor, the latest hub time that the CA itself signed (at enrolment and each renewal: the hub's other
keys could lie about it and lock every device out); one that begins later only proves that time has passed. So a wrong
clock locks nobody out, and a certificate that is certainly over opens nothing.
"""

import ssl
from collections.abc import Mapping, Sequence

# X509_V_FLAG_NO_CHECK_TIME (OpenSSL, x509_vfy.h); Python has no name for it.
_NO_CHECK_TIME = 0x200000


class DeviceSocket(ssl.SSLSocket):
    """Checks the peer's certificate against the floor as soon as the handshake is done, before a byte is sent."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
            if isinstance(self.context, DeviceContext):
                self.context.check(self.getpeercert() or {})
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise  # not failed, only not done
        except OSError:
            self.close()  # who called may know nothing of a handshake that fails, least of all after its end
            raise


class DeviceContext(ssl.SSLContext):
    """Made by `context`."""

    sslsocket_class = DeviceSocket
    floor_ms: int

    def check(self, certificate: Mapping[str, object]) -> None:
        """SSLCertVerificationError if it ended before the floor. `certificate` as ssl describes it."""
        ends = certificate.get("notAfter")
        if not isinstance(ends, str) or ssl.cert_time_to_seconds(ends) * 1000 < self.floor_ms:
            raise ssl.SSLCertVerificationError(f"the server's certificate ended before hub time: {ends}")


def context(authorities: Sequence[str], floor_ms: int) -> DeviceContext:
    """Trusts these CAs (PEM) and no other; TLS 1.2 and up, host name checked. ssl.SSLError if one cannot be read."""
    made = DeviceContext(ssl.PROTOCOL_TLS_CLIENT)
    made.floor_ms = floor_ms
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.verify_flags |= _NO_CHECK_TIME
    made.load_verify_locations(cadata="".join(authorities))
    return made
