"""The hub's databases: SQLite files in the state folder, or schemas of one PostgreSQL database.

`tables` holds every table of one metadata, `parts` what belongs together (a file, or a PostgreSQL schema) with its
migrations and the rules of changing it, `expansion` adds what a part lacks, `connection` opens a part, `server` checks
a PostgreSQL server before anything rests on it, `errors` puts the drivers' errors into words, `statements` builds what
both dialects write differently. May import `wire` alone. Not pure: SQLite, sockets.
"""
