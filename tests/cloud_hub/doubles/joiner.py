"""A device that enrols, as the enrolment contract describes it: keys, request, proof of possession."""

import base64
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


@dataclass
class Joiner:
    tls: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    hpke: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)

    def csr(self) -> str:
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(self.tls, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def request(self, token: str, **changed: str) -> dict[str, str]:
        """A whole request; `changed` replaces fields after the proof was made."""
        csr = self.csr()
        signing = self.signing.public_key().public_bytes_raw()
        hpke = self.hpke.public_key().public_bytes_raw()
        proof = self.signing.sign(sha256(b"skerry-enrol/1\0" + token.encode() + csr.encode() + signing + hpke).digest())
        fields = {"signing_key": signing, "hpke_key": hpke, "proof": proof}
        return {"token": token, "csr": csr, **{k: base64.b64encode(v).decode() for k, v in fields.items()}, **changed}

    def proof(self, text: bytes) -> str:
        """By the identity key, base64."""
        return base64.b64encode(self.signing.sign(text)).decode()

    def key_pem(self) -> bytes:
        return self.tls.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
