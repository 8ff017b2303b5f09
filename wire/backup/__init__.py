"""Backups of a state folder: one archive with digests, sealed if that is asked for, and its way back into a folder.

`sealing` encrypts a stream, `archive` writes and reads the archive, `restoring` puts what it holds into place.
"""
