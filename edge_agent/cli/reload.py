"""Command `skerry agent reload`: have a running agent read its configuration again."""

import json
from typing import Any

from edge_agent.cli.agent import AsJson, ConfigOption, StateOption, find_state_folder
from edge_agent.cli.client import find_running_agent, request_json
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.reload import describe_reload, request_reload


def reload(state: StateOption = None, config: ConfigOption = None, *, as_json: AsJson = False) -> None:
    """Have a running agent read its configuration, local policies, certificate and token again, as SIGHUP does.

    What changed is named, and what only a restart can change. A file with anything wrong in it changes nothing: exit
    code 10. Exit code 41 if no agent runs there.

    Example: skerry agent reload --config cam-7.toml
    """
    folder = find_state_folder(state, config)

    def read_status() -> dict[str, Any]:
        address = find_running_agent(folder)
        if address is None:
            raise ExitError(ExitCode.NOT_FOUND, f"no agent with an API runs on {folder}; send it SIGHUP")
        return request_json(address, "/v1/status")

    found = request_reload(folder, read_status)
    if as_json:
        print(json.dumps(found))
    for line in describe_reload(found):
        if not as_json:
            print(line)
