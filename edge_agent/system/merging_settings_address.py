"""Where a running agent is reached: one small file in its state folder, there while it runs."""

from pathlib import Path

import msgspec

from wire.process.files import write_private

ADDRESS_FILE = "api.json"


class Address(msgspec.Struct, frozen=True):
    """`url`: http://..., https://... or unix:PATH. The token itself stays in its own file."""

    url: str
    token_file: str = ""
    tls_cert: str = ""

    def save(self, state: Path) -> None:
        write_private(state / ADDRESS_FILE, msgspec.json.encode(self))
