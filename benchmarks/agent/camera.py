"""Benchmark: what a camera costs: 10 pictures a second of 640 x 480, a small net, a still and a moving scene.

`python -m benchmarks.agent.camera`. Processor time of the agent and of the process that decodes, by the kernel's count,
against the wall clock; a real hub is there and is asked by the policy. Beside it: a process that only decodes the same
stream with the same library. The camera is GStreamer's RTSP server with recorded frames (`./setup.sh dev` installs it).
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.agent.memory import read_memory_mib
from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.rig import POLICY, BenchmarkRig
from simulations.processes import AgentHandle
from tests.edge_agent.doubles.videos import write_video
from tests.live.doubles.rtsp import RtspServer, has_rtsp_server

SECONDS = 20.0
SETTLE_S = 6.0
FRAMES = 600
STILL_AIM, MOVING_AIM = 10.0, 60.0  # percent of a core
_DECODE = """
import av, sys
av.logging.set_level(None)
with av.open(sys.argv[1], format="rtsp", options={"rtsp_transport": "tcp"}) as container:
    container.streams.video[0].codec_context.thread_count = 1
    print("open", flush=True)
    for frame in container.decode(video=0):
        pass
"""


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    if not has_rtsp_server():
        raise RuntimeError("GStreamer's RTSP server is not installed: ./setup.sh dev installs it")
    figures = []
    async with BenchmarkRig(folder, bundle) as rig, rig.run_hub():
        for scene, moving, aim in (("still", False, STILL_AIM), ("moving", True, MOVING_AIM)):
            video = await asyncio.to_thread(
                write_video, folder / f"{scene}.mkv", FRAMES, moving=moving, size=(640, 480)
            )
            figures.append(await _measure_scene(rig, scene, video, aim))
    return figures


async def _measure_scene(rig: BenchmarkRig, scene: str, video: Path, aim: float) -> Figure:
    with RtspServer(video) as server:
        agent = await _start_camera(rig, scene, server.url)
        await rig.stage.wait_for(agent, lambda status: status["sources"]["camera-1"]["answered"] >= 1, "no picture")
        await asyncio.sleep(SETTLE_S)
        pids = [agent.child.pid, *_find_decoders(agent.child.pid)]
        before, counts = list(map(_read_cpu_s, pids)), await _read_counts(rig, agent)
        began = time.monotonic()
        await asyncio.sleep(SECONDS)
        wall_s = time.monotonic() - began
        spent = [100 * (_read_cpu_s(pid) - was) / wall_s for pid, was in zip(pids, before, strict=True)]
        after = await _read_counts(rig, agent)
        memory = [read_memory_mib(pid)[0] for pid in pids]
        await agent.child.stop()
        bare = await _measure_decoding(server.url)
    given = {key: after[key] - counts.get(key, 0) for key in after}
    terms = (
        f"agent {format_number(spent[0])} %, decoding process {format_number(sum(spent[1:]))} %; a process that only"
        f" decodes this stream: {format_number(bare)} %",
        f"in {wall_s:.0f} s: {', '.join(f'{count} {key}' for key, count in sorted(given.items()) if count)}",
        f"RSS: agent {memory[0]:.0f} MB, decoding process {sum(memory[1:]):.0f} MB",
    )
    return Figure(f"camera 640 x 480 at 10 frames/s, {scene} scene", sum(spent), "% of a core", aim, terms=terms)


async def _start_camera(rig: BenchmarkRig, scene: str, url: str) -> AgentHandle:
    policy = rig.folder / f"{scene}.policy.toml"
    policy.write_text(POLICY.format(mode="answer_now", threshold=0.9))
    tables = {
        "input": {"kind": "picture", "channels": "grey"},
        "camera": [{"url": url, "frames_per_s": 10.0}],
    }
    agent = await rig.stage.add_agent(scene, rig.bundle, policy, tables)
    await rig.stage.start_agent(agent)
    return agent


async def _read_counts(rig: BenchmarkRig, agent: AgentHandle) -> dict[str, int]:
    async with rig.stage.session.get(f"{agent.url}/v1/status") as response:
        status: dict[str, Any] = await response.json()
    camera = status["sources"]["camera-1"]
    asked = {"questions sent": int(status["counts"].get("sent", 0))}
    return {"received": camera["received"], "answered": camera["answered"], **camera["dropped"], **asked}


async def _measure_decoding(url: str) -> float:
    """Percent of a core that decoding alone takes."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DECODE, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert child.stdout is not None
        await child.stdout.readline()
        await asyncio.sleep(SETTLE_S)
        before, began = _read_cpu_s(child.pid), time.monotonic()
        await asyncio.sleep(SECONDS / 2)
        return 100 * (_read_cpu_s(child.pid) - before) / (time.monotonic() - began)
    finally:
        child.kill()
        await child.wait()


def _find_decoders(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"sources.cameras.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield int(pid)


def _read_cpu_s(pid: int) -> float:
    """Processor seconds of a process, user and system, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
