"""Sources of samples beside the HTTP API.

`feed` is what all of them need of the agent. `files` watches a folder; `json_lines` answers the lines of a pipe; both
pass corrections on by `corrections`. Sources with a device behind them (`cameras`, sensors) are written to the
interface in `source` and run by `supervisor`: one bounded queue, counters by reason (`counts`), restarts with backoff,
an entry in status, metrics and alarms.

To add a source: a class with the four attributes and `run` of `source.SampleSource`, a section in
`app/source_config.py`, and one line in `app/sources.py` that makes it. Everything else is here already.
"""
