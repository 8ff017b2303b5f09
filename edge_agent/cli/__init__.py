"""Command line of the device: `skerry agent`, `skerry why`, `skerry erase`, `skerry ledger` and `skerry policy`.

`agent` enrols, runs, inspects, renews and retires a device, with `client` for a running agent's API, `explain` for the
text of one answer, `erasure` and `retirement` for what those commands do. `ledger` shows and proves what left a device.
`policy` checks, explains and compares policies, with `policy_check` and `policy_files`.

May import every folder of the package and `policies`; nothing imports it, and the running agent never loads it. Heavy
imports stand inside the commands that need them.
"""
