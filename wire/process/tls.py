"""TLS on a connected socket, without what Python leaves open before 3.13.

`SSLContext.wrap_socket` takes the descriptor over at once. If the peer has reset the connection by then, it raises, and
before Python 3.13 nobody closes the descriptor that it took: an agent whose broker hangs up would lose one each time.
"""

import socket
import ssl
import traceback


def start_tls(
    tls: ssl.SSLContext, sock: socket.socket, host: str | None = None, *, handshake: bool = True
) -> ssl.SSLSocket:
    """The socket as a client of TLS; closed where that fails (OSError). `host`: the name to ask for and to check.

    `handshake` False: nothing is sent yet, as a socket that does not block needs it.
    """
    try:
        return tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=handshake)
    except BaseException as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            made = frame.f_locals.get("self")
            if isinstance(made, ssl.SSLSocket):
                made.close()
        sock.close()
        raise
