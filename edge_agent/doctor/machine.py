"""Checks of what lies on a device: its folder, keys, certificate, records, model, policy, and its own address."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from edge_agent.app.config import AgentConfig
from edge_agent.identity.identity import (
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    HPKE_KEY_FILE,
    PAYLOAD_KEY_FILE,
    SIGNING_KEY_FILE,
    Identity,
)
from edge_agent.storage.schema import SCHEMA
from edge_agent.system.policy_layers import PolicyStack, read_policy_files
from edge_agent.system.settings import name_of
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from policies.model.policy import PolicyError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import list_set_aside
from wire.process.findings import Finding, Severity, judge_certificate, judge_disk
from wire.process.probes import DatabaseCondition, measure_free_bytes, probe_database, probe_port

DATABASE_FILE = "agent.db"
_SECRETS = (SIGNING_KEY_FILE, HPKE_KEY_FILE, PAYLOAD_KEY_FILE, CERTIFICATE_FILE, CERTIFICATE_KEY_FILE)
_DAY_MS = 86_400_000
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_folder(folder: Path, free_bytes: Callable[[Path], int] = measure_free_bytes) -> Iterator[Finding]:
    """Whether the state folder is there and this user may write to it, and how much room its disk has."""
    if not folder.is_dir():
        raise ExitError(ExitCode.MISSING, f"{folder} is not there: skerry agent enrol INVITE --dir {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("folder", Severity.PROBLEM, f"{folder} cannot be written by this user", f"chown {folder}")
    else:
        yield Finding("folder", Severity.FINE, str(folder))
    yield judge_disk("disk", free_bytes(folder))


def check_secrets(folder: Path) -> Iterator[Finding]:
    """Whether keys can be read by their owner alone."""
    there = [folder / name for name in _SECRETS if (folder / name).exists()]
    open_ones = [path.name for path in there if path.stat().st_mode & _OTHERS]
    if open_ones:
        names = " ".join(open_ones)
        text = f"others may read {', '.join(open_ones)} in {folder}"
        yield Finding("secrets", Severity.PROBLEM, text, f"chmod 600 {names}, and enrol anew if others could log in")
    else:
        yield Finding("secrets", Severity.FINE, f"{len(there)} files, read by their owner alone")


def check_certificate(identity: Identity, now_ms: int) -> Iterator[Finding]:
    """Whether certificate and key fit together and are good. `now_ms`: hub time as far as it is known."""
    identity.tls_context()
    begin_ms, end_ms = identity.certificate_ms
    if end_ms:
        again = "skerry agent renew --dir FOLDER; where the hub refuses that: suspend, invite --replace, enrol again"
        yield judge_certificate("certificate", begin_ms, end_ms, now_ms, again)
    if missing := identity.explain_missing_updates():
        yield Finding("updates", Severity.WARNING, missing)


def check_database(folder: Path) -> Iterator[Finding]:
    """Whether agent.db is whole and of this version; read only, beside a running agent too."""
    path = folder / DATABASE_FILE
    aside = list_set_aside(path)
    if aside:
        text = f"a damaged one was set aside: {', '.join(aside)}"
        yield Finding("database", Severity.WARNING, text, "keep it for its ledger, or delete it; look at the disk")
    condition, version = probe_database(path)
    if version > len(SCHEMA):
        text = f"{path}: written by a newer version (schema {version}, here {len(SCHEMA)})"
        yield Finding("database", Severity.PROBLEM, text, "install that version again")
    elif condition is DatabaseCondition.DAMAGED:
        advice = "the agent sets it aside at its next start; look at the disk"
        yield Finding("database", Severity.PROBLEM, f"{path} is damaged", advice)
    else:
        yield Finding("database", Severity.FINE, condition)


def check_model(config: AgentConfig) -> Iterator[Finding]:
    """Whether the model is there, whole and readable by this version."""
    if name := name_of(config.bundle):
        yield Finding("model", Severity.FINE, f"{name}, from the update repository")
        return
    try:
        found = open_bundle(config.bundle).manifest
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    yield Finding("model", Severity.FINE, found.model)


def check_policy(config: AgentConfig, now_ms: int) -> Iterator[Finding]:
    """Whether policies can be read and have not ended, and whether anything may leave at all."""
    layers = config.policy_layers()
    try:
        found = PolicyStack(read_policy_files(layers)).policy
    except PolicyError as error:
        raise ExitError(ExitCode.POLICY, f"policy: {error}") from None
    told = f"{len(layers.files)} from files, {len(layers.published)} from the repository"
    if not (layers.files or layers.published or layers.airgap):
        yield Finding("policy", Severity.WARNING, "none: nothing may leave this device", "name one: policy = FILE")
    elif found is not None and found.expires_day < now_ms // _DAY_MS:
        text = f"ended on {found.expires}: nothing leaves any more"
        yield Finding("policy", Severity.PROBLEM, text, "write a newer one, or let the hub publish it")
    else:
        yield Finding("policy", Severity.FINE, told)


def check_address(config: AgentConfig) -> Iterator[Finding]:
    """Whether the local API can listen where it is told to; not to be asked while the agent itself does."""
    api = config.api
    if not api.enabled or api.unix or not api.port:
        yield Finding("address", Severity.FINE, api.unix or ("any free port" if api.enabled else "no local API"))
        return
    if why := probe_port(api.host, api.port):
        text = f"{api.host}:{api.port}: {why}"
        yield Finding("address", Severity.PROBLEM, text, "another program has it: choose another [api] port")
        return
    yield Finding("address", Severity.FINE, f"{api.host}:{api.port} is free")
