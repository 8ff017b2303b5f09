"""HTTP building blocks of the device's and the hub's servers and of their command-line clients.

- `oip`: requests and replies of the Open Inference Protocol v2 (KServe)
- `tensors`: one tensor in JSON or in the binary tensor extension
- `openapi`: OpenAPI documents of both servers (pure)
- `access`: listening addresses, TLS, bearer tokens; `guards`: aiohttp middlewares that check them
- `callers`: who called, behind trusted proxies; `server`: connections within the process's descriptors
- `client`: the blocking client: one reply, or a download; by TCP, TLS or a Unix socket, direct or through a proxy
- `deferred_client`: aiohttp without its own client, in a process that serves

Not pure. It may import `wire.protocol`, `wire.process` and `wire.errors`.
"""
