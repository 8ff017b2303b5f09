"""Process that compiles policy documents: texts on stdin, a `CompiledDocument` each on stdout, as MessagePack.

It alone of an agent's processes at run time imports the policy language, beside the worker of updates.
"""

import sys

import msgspec

from edge_agent.system.policy_compiler import CompiledDocument
from policies.language.document import parse_policy
from policies.model.policy import PolicyError


def compile_text(text: bytes) -> CompiledDocument:
    """Compile one document."""
    try:
        return CompiledDocument(parse_policy(text).compile_layer())
    except PolicyError as error:
        return CompiledDocument(error=str(error))


def main() -> int:
    """Read all documents, write all results."""
    texts = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[bytes])
    sys.stdout.buffer.write(msgspec.msgpack.encode([compile_text(text) for text in texts]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
