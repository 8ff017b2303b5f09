"""Sources of samples beside the HTTP API.

`feed` is what all of them need of the agent. `folder` watches a folder of files, read by `image_files`; `json_lines`
answers the lines of a pipe; both pass corrections on by `corrections`. Sources with a device behind them (cameras,
sensors) are written to the interface in `source` and run by `supervisor`: one bounded queue, counters by reason,
restarts with backoff, an entry in status, metrics and alarms.

`camera` is one; `camera_worker` is the process that decodes it, with `motion`, its gate; `camera_messages` is what the
two say to each other.

To add a source: a class with the four attributes and `run` of `source.SampleSource`, a section in `app/config.py`, and
one line in `app/sources.py` that makes it. Everything else is here already.
"""
