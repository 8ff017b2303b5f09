"""Reload of a running agent's configuration, at SIGHUP: the file, local policies, and files of certificate and token.

Rule: everything is read and checked before anything is changed; what cannot be used leaves all as it was.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_agent.app.agent import Agent
from edge_agent.app.config import AgentConfig, load_config
from edge_agent.system.policy_layers import PolicyDocuments, PolicyLayers, PolicyStack, read_policy_files
from edge_agent.system.settings import AgentSettings
from policies.model.policy import PolicyError
from wire.http.access import build_tls_context, load_token
from wire.process.config import flatten_config
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, describe_error, safe_name
from wire.process.reload import ConfigChange, ReloadRecord

if TYPE_CHECKING:
    from edge_agent.api.app import ApiServer

# What a running agent takes. `policy`: as long as its layers come from files before and after.
LIVE_KEYS = (
    "log_level", "policy", "records.", "outbox.max_rows", "outbox.max_bytes", "outbox.ask_interval_s",
    "link.reconnect_base_s", "link.reconnect_cap_s", "link.silent_after_s",
    "device.region", "device.tags", "device.metered", "device.metered_file", "device.power_supply",
)  # fmt: skip


class AgentReload:
    """Reads an agent's configuration again, and hands what changed to whoever goes by it.

    `file`: None for an agent that has its configuration from the environment alone.
    """

    def __init__(self, file: Path | None, config: AgentConfig, agent: Agent, log: JsonLog) -> None:
        self._file = file
        self._config = config  # as it started
        self._agent = agent
        self._log = log
        self._layers = config.policy_layers()
        self.record = ReloadRecord(flatten_config(config), LIVE_KEYS, log)
        agent.add_status_provider(self.record)

    async def reload(self, settings: AgentSettings, standing: PolicyStack, server: "ApiServer | None") -> AgentSettings:
        """Take the file, or refuse it as a whole; returns the settings that the agent goes by from now on."""
        try:
            config = load_config(self._file)
            change, layers = self._compare(config)
            files = await asyncio.to_thread(read_policy_files, layers)
            _check_replaceable(layers, files, standing)
            build_tls_context(self._config.api_access())
            load_token(self._config.api_access())
        except (ExitError, PolicyError) as error:
            if isinstance(error, PolicyError) or error.code is ExitCode.POLICY:
                self._log.error("policy_refused", error=describe_error(error))
            self.record.note_refused(error)
            return settings
        more = server.reload_access() if server else ()
        self._layers = layers
        more += self._replace_policy(standing, files)
        settings = choose_live_settings(settings, config)
        self._log.set_level(config.log_level)
        self._agent.use_settings(settings)
        self.record.note_taken(flatten_config(config), change, more)
        return settings

    def _compare(self, config: AgentConfig) -> tuple[ConfigChange, PolicyLayers]:
        """What differs, and the layers to read: layers from elsewhere than files wait for a restart."""
        change, layers = self.record.compare(flatten_config(config)), config.policy_layers()
        if (layers.published, layers.airgap) == (self._layers.published, self._layers.airgap):
            return change, layers
        live = tuple(key for key in change.live if key != "policy")
        return ConfigChange(live, tuple(sorted({*change.restart, "policy"}))), self._layers

    def _replace_policy(self, standing: PolicyStack, files: PolicyDocuments) -> tuple[str, ...]:
        if self._layers.published:
            self._agent.refresh()
        taken = standing.replace_files(files) if self._layers.files else None
        if taken is None:
            return ()
        self._agent.use_policy(taken)
        self._log.info("policy_taken", policy=safe_name(taken.hash))
        return ("the policy's text",)


def _check_replaceable(layers: PolicyLayers, files: PolicyDocuments, standing: PolicyStack) -> None:
    """Raise ExitError(POLICY) or PolicyError for local layers that may not replace those in force."""
    if layers.files and standing.refuses_files(files):
        raise ExitError(
            ExitCode.POLICY, "policy: it may replace the one in force only under the same names and higher versions"
        )


def choose_live_settings(settings: AgentSettings, config: AgentConfig) -> AgentSettings:
    """The settings with what a running agent takes of a new configuration; everything else stays."""
    new = config.agent_settings()
    outbox = msgspec.structs.replace(
        settings.outbox, max_rows=new.outbox.max_rows, max_bytes=new.outbox.max_bytes,
        ask_interval_s=new.outbox.ask_interval_s,
    )  # fmt: skip
    attributes = msgspec.structs.replace(new.attributes, device_class=settings.attributes.device_class)
    return msgspec.structs.replace(
        settings, log_level=config.log_level, outbox=outbox, attributes=attributes,
        reconnect_base_s=new.reconnect_base_s, reconnect_cap_s=new.reconnect_cap_s,
        silent_after_s=new.silent_after_s, **msgspec.structs.asdict(config.records),
    )  # fmt: skip
