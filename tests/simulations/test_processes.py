"""Ports that are chosen for servers of a live run: nobody else is given one between its choice and its server."""

import socket

import pytest

from simulations.processes import find_free_port


def test_a_chosen_port_stays_free_for_its_server_alone():
    port = find_free_port()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))
    for _ in range(2):  # a server may be started again
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), 60):
            pass
    assert find_free_port() != port
