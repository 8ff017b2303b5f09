"""Test doubles of the models package: networks, hostile graphs, a TUF repository in memory and a faulty HTTP mirror."""
