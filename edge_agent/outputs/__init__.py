"""Outputs: answers and corrections handed on, as they are committed, to an MQTT topic, a webhook, a folder or a file.

`settings.py` is the `[[output]]` table; `delivery.py` reads committed records, selects and delivers them at least once,
with a position that lasts over restarts; `files.py`, `webhook.py` and `mqtt.py` are the targets; `home_assistant.py` is
the discovery messages of Home Assistant; `supervisor.py` runs all outputs of an agent.

Rule: an output only reads what is committed, so a target that is slow or dead costs no answer anything. What goes to
another machine is egress: the policy has to list it.
"""
