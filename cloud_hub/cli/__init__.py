"""Commands of the hub: `skerry hub`, `devices`, `rollout`, `repository`, and the hub's part of `models` and `policy`.

`operations` carries out commands through a running hub's API or on its state folder; `options` holds common options and
output helpers; `hub`, `devices`, `rollout` (with `rollout_text` for its output), `publish`, `models` and `measure` are
typer commands. Text for people, `--json` for programs; errors are an `ExitError`.

Nothing imports it; heavy modules are imported inside the commands that need them.
"""
