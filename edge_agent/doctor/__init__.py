"""Checkup of a device: `machine` what lies on it, `network` what it needs of others, `device` all of it in order.

Nothing is changed by it, and nothing of a running agent is disturbed. Imports `app.config` and below.
"""
