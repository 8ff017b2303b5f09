"""A whole device on disk, without a hub: identity, bundle, policy and configuration, for tests of the process."""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.security.authority import Authority, encode_certificate, utc_now
from edge_agent.identity.identity import HubKeys, Identity, generate_payload_key
from tests import ROOT
from tests.models.conftest import make

DEVICE = "demo--d1"
CONFIG = """
state = "device"
bundle = "echo"
policy = "policy.toml"
data_class = "open"
[api]
port = 0
"""


def write_device(folder: Path) -> Path:
    """Write a device's folder, and return its configuration file. Its broker (port 1) never answers."""
    (folder / "pki").mkdir()
    authority = Authority.open(folder / "pki", utc_now())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, DEVICE)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    certificate = authority.issue_device(request.public_bytes(serialization.Encoding.PEM), DEVICE, utc_now())
    hub = HubKeys(
        "hub-1",
        "local",
        X25519PrivateKey.generate().public_key().public_bytes_raw(),
        Ed25519PrivateKey.generate().public_key().public_bytes_raw(),
    )
    identity = Identity(
        DEVICE,
        "127.0.0.1",
        1,
        (hub,),
        1_790_000_000_000,
        Ed25519PrivateKey.generate(),
        X25519PrivateKey.generate(),
        generate_payload_key(),
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    identity.save(folder / "device", encode_certificate(certificate).encode(), private, authority.certificate_pem)
    make(folder / "echo")
    policy = (ROOT / "policies/templates/demo.toml").read_text(encoding="utf-8")
    (folder / "policy.toml").write_text(policy, encoding="utf-8")
    (folder / "agent.toml").write_text(CONFIG, encoding="utf-8")
    return folder / "agent.toml"
