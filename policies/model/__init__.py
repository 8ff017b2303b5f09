"""The compiled policy: what a device or hub evaluates, without parsing anything. Pure.

- `policy`: frozen structs of a policy, its rules and its terms
- `context`, `matching`: conditions and the bit-set index that finds the matching rules
- `terms`, `narrowing`: the terms that apply in a context, as the meet of base and rules
- `composition`: one policy of the documents of several layers
- `differential_privacy`: accounting of Gaussian noise
- `reasons`: reason codes and the denial value

It imports `wire.protocol` only.
"""
