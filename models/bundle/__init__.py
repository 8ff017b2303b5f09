"""The model bundle: a folder with a manifest and the files that it names by SHA-256, or the same packed as one file.

`manifest` is the typed JSON description with `measurements` for its figures, `bundle` reads the edge part, `hub_part`
the hub's, `version` writes both, `archive` packs the edge part into `.skb`, `thresholds` holds per-class escalation
thresholds, `bit_packing` packs codes to bits.
Values and file access only: no model runs here. It may import `wire.protocol`.
"""
