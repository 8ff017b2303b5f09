"""Composition of the running hub: configuration, state folder, broker, link, maintenance tasks and the process.

`process` starts and stops everything in order; `hub` is the loop that executes the core's commands; `link` is the MQTT
connection and what is published over it; `broker` runs Mosquitto as a child; `identity` joins registry, CA and broker;
`maintenance` renews the update repository and keys; `policies` loads the documents served under; `config` and
`bootstrap` read the configuration and open the state folder.

May import everything of the hub; of the hub only `cli` and `__main__` import it.
"""
