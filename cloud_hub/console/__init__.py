"""The console: pages of the hub for people, served at `/`, made on the server.

It reads through the services of the web API and changes nothing itself: its buttons send the requests of `skerry` to
the API's own routes, under the session of a key. `app` holds the pages together, `live` tells open pages what moved.
"""
