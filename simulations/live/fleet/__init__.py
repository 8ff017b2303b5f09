"""Agents of a live run: many of the product's own in one process, each with certificate, keys, database and connection.

`agents`: an agent, and those of one process. `enrollment`: how they get keys and certificates. `database`: their files,
written by the event loop itself. `watchdogs`: their timer. `load`: samples. `host`: the program of such a process,
`messages`: what it is told and says.

Imports the whole product and `scenario`.
"""
