"""Checkup of a hub: `machine` what lies in its folder and on its machine, `hub` all of it in order.

Nothing is changed by it, and nothing of a running hub is disturbed. Imports `runtime` and below.
"""
