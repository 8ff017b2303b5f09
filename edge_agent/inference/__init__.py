"""The model on the device, its escalation threshold, and the evaluation of candidate models.

`model` runs the model and watches its inputs for drift, `class_threshold` applies the calibrated threshold of the
device's class, `evaluation` counts how a candidate does (pure), `requests` checks callers' samples and hashes subjects.
May import `question`, `system`, `storage`, `uplink`, `models.runtime`, `models.bundle` and `policies`. Pure:
`evaluation` only.
"""
