"""Rows of the cuts' frontier as JSON, for the cache and for the report.

Law: a row is found again by the name of its cut; a cut that is not there any more takes its row along.
"""

import json
from collections.abc import Sequence
from typing import Any

from models.forge.partition.cuts import Cut
from models.forge.partition.merging_cost_heads import HeadCost


def encode_rows(rows: Sequence[HeadCost]) -> bytes:
    return json.dumps([facts(row) for row in rows], indent=1).encode()


def decode_rows(data: bytes, cuts: Sequence[Cut]) -> list[HeadCost]:
    named = {cut.name: cut for cut in cuts}
    found = [dict(row) for row in json.loads(data)]
    return [HeadCost(cut=named[row.pop("cut")], **_known(row)) for row in found if row["cut"] in named]


def facts(row: HeadCost) -> dict[str, Any]:
    return {**row._asdict(), "cut": row.cut.name, "share": row.cut.share, "shapes": row.cut.shapes}


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in HeadCost._fields}
