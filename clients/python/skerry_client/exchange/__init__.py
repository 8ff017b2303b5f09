"""How calls become HTTP exchanges: commands and replies as values, retries, operations, and two thin transports.

Rule: what is asked, and what a reply means, is decided by generators that do no I/O; `transports` obeys them, once
blocking and once on asyncio.
"""
