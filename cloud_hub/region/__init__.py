"""What the hubs of one region, which share a PostgreSQL database, have of each other: names, shards, and news.

`leases` and `lease_keeper` say which hub serves which shards. `membership` holds a hub's name with a session of the
database, says each second that it is there and has the others' changes taken in; `news` decides what has to be read
again; `clock` is the server's, by which all hubs go. `shared_files` keeps CA, keys and update repository alike in
folder and database, as `file_sync` plans it, sealed by `vault`. May import `wire`, `policies` and `database`. Not pure,
except `news` and `file_sync`.
"""
