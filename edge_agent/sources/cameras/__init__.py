"""Cameras: `camera` is the source that the agent runs, `worker` the process that decodes one.

`messages` is what the two say to each other, `motion` the gate that drops a still scene.
"""
