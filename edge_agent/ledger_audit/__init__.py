"""Reading the egress ledger: verify it, summarise it, export it, and prove from it what was not sent.

`verify` checks the hash chain, the signed heads and what hubs have logged of them, `proof` writes and checks proof
files, `summary` adds up by rule, day or region, `export` writes a signed copy. All open agent.db read only; the SQL is
in `storage`. May import `storage`, `identity` and `wire`.
"""
