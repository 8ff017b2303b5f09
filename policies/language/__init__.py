"""The policy language: a TOML document, validated by pydantic and compiled to `policies.model`. Pure.

- `document`: parsing, the document as a whole, composition of several layers
- `schema`: its sections and rules
- `transforms`: the transforms that a field may go through
- `values`: value types and one-line error messages

It imports `policies.model`, `policies.decisions.egress` (redaction patterns) and `wire.protocol`.
"""
