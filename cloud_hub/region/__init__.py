"""What the hubs of one region, which share a PostgreSQL database, have of each other: names, and who is alive.

`membership` holds a hub's name with a session of the database and says each second that it is there. May import `wire`
and `database`. Not pure: sockets, a thread.
"""
