"""Whether the nodes of a cluster have room for the stages of a plan, each of which stays on one node. Pure."""

from collections.abc import Mapping, Sequence


def count_stages(node: Mapping[str, float], stage: Mapping[str, float]) -> int:
    """Count the stages that a node with these resources can hold; resources by name, as `CPU` and `GPU`."""
    return int(min((node.get(name, 0.0) // wanted for name, wanted in stage.items() if wanted > 0), default=0))


def explain_shortage(nodes: Sequence[Mapping[str, float]], stages: int, stage: Mapping[str, float]) -> str:
    """Say in one line why these nodes cannot hold so many stages; "" if they can."""
    if sum(count_stages(node, stage) for node in nodes) >= stages:
        return ""
    wanted = f"{stages} stages of {_format_resources(stage, stage)}, each on one node" if stages > 1 else (
        f"{_format_resources(stage, stage)} on one node"
    )  # fmt: skip
    largest = sorted(nodes, key=lambda node: [-node.get(name, 0.0) for name in sorted(stage)])
    have = ", ".join(_format_resources(node, stage) for node in largest) or "none"
    return f"no nodes satisfy the plan: it takes {wanted}; the nodes that are alive have: {have}"


def _format_resources(found: Mapping[str, float], names: Mapping[str, float]) -> str:
    return " and ".join(f"{found.get(name, 0.0):g} {name}" for name in sorted(names))
