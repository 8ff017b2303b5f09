"""An RTSP server of recorded frames: GStreamer's, run by the system's Python, which has its bindings.

    RTSP_USER=viewer RTSP_PASSWORD=.. python3 rtsp_server.py PORT FILE

Serves FILE (Matroska, H.264), again and again in real time, as rtsp://127.0.0.1:PORT/stream. Without a user it asks
for none. Prints one line when it listens. It is run by its path alone: nothing of the project is imported.
"""

import os
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402 - its version has to be chosen before


class Recording(GstRtspServer.RTSPMediaFactory):  # type: ignore[misc]
    """The file as a stream; at its end each session begins anew."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file
        self.set_shared(True)

    def do_create_element(self, _url):
        steps = (f"filesrc location={self._file}", "matroskademux", "rtph264pay name=pay0 pt=96")
        return Gst.parse_launch(" ! ".join(steps))


def main(port: str, file: str) -> None:
    user, password = (os.environ.get(f"RTSP_{name}", "") for name in ("USER", "PASSWORD"))
    Gst.init(None)
    server = GstRtspServer.RTSPServer(address="127.0.0.1", service=port)
    factory = Recording(file)
    if user:
        auth = GstRtspServer.RTSPAuth()
        token = GstRtspServer.RTSPToken()
        token.set_string("media.factory.role", "viewer")
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
        server.set_auth(auth)
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_permission_for_role("viewer", "media.factory.access", True)
        permissions.add_permission_for_role("viewer", "media.factory.construct", True)
        factory.set_permissions(permissions)
    server.get_mount_points().add_factory("/stream", factory)
    assert server.attach(None)
    print("listening", flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
