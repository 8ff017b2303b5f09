"""Models of the framework: split ONNX bundles, how they run, are checked, signed, distributed and made.

Sub-packages: `bundle` (manifest and files on disk), `runtime` (running a bundle, codec, transforms), `verification`
(lint and sandboxed first load), `graph` (the hub's model as a closed graph format), `sharding` (dividing it among
ranks), `update` (TUF client and slots of a device), `signing` (offline keys and roles), `forge` (training and export
of a bundle), `zoo` (example networks), `cli` (the `skerry models` and `skerry keys` commands).
It may import `wire`; a device imports `bundle`, `runtime`, `verification`, `update` and `signing.roles`, without torch.
"""

import wire  # noqa: F401 - switches off the telemetry of onnxruntime and others before a module here imports them
