"""Checks of what lies on a hub's machine: folder, authority, databases, models, policies, repository, broker, ports."""

import os
import stat
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from cryptography import x509

from cloud_hub.database.marks import find_mark, is_missing
from cloud_hub.database.parts import PARTS
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.broker import find_program
from cloud_hub.runtime.config import HubConfig
from cloud_hub.runtime.policies import compile_policies
from cloud_hub.security.authority import is_matching_pair
from cloud_hub.system.state_folder import StateDir
from models.bundle.bundle import open_bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import list_set_aside, read_private_file
from wire.process.findings import Finding, Severity, judge_certificate, judge_disk
from wire.process.probes import DatabaseCondition, measure_free_bytes, probe_database, probe_port

_SCHEMA = "select value from meta where key = 'schema'"
_NEW_KEYS = "make the signing keys before the first device enrols (docs/trust.md, the first keys)"


def check_folder(state: StateDir, free_bytes: Callable[[Path], int] = measure_free_bytes) -> Iterator[Finding]:
    """Whether the state folder is there, private and writable, and how much room its disk has."""
    root = state.root
    if not root.is_dir():
        raise ExitError(ExitCode.DISK, f"{root} is not there: `skerry hub init` makes it")
    if not os.access(root, os.W_OK | os.X_OK):
        yield Finding("folder", Severity.PROBLEM, f"{root} cannot be written by this user", f"chown {root}")
    elif root.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        advice = f"chmod 700 {root}; renew its keys if others could log in (docs/trust.md)"
        yield Finding("folder", Severity.PROBLEM, f"others may look into {root}", advice)
    else:
        yield Finding("folder", Severity.FINE, str(root))
    yield judge_disk("disk", free_bytes(root))


def check_authority(state: StateDir, now: datetime) -> Iterator[Finding]:
    """Whether the CA and the hub's own certificate can be used, and for how long."""
    folder = state.certificates
    ca, key = folder / "ca.pem", folder / "ca.key"
    if not ca.exists() or not key.exists():
        missing = "nothing" if not ca.exists() and not key.exists() else "one of ca.pem and ca.key alone"
        severity = Severity.WARNING if missing == "nothing" else Severity.PROBLEM
        advice = "it is made at the first start" if severity is Severity.WARNING else "restore both from a backup"
        yield Finding("authority", severity, f"{missing} in {folder}", advice)
        return
    if not is_matching_pair(ca, key):
        raise ExitError(ExitCode.CREDENTIALS, f"{ca} does not belong to {key}: restore both from a backup")
    yield _judge_file("authority", ca, now, "replace it: skerry hub ca rotate")
    if (server := folder / "server.pem").exists():
        yield _judge_file("certificate", server, now, "it is issued anew at the next start")


def _judge_file(check: str, path: Path, now: datetime, renew: str) -> Finding:
    try:
        found = x509.load_pem_x509_certificate(read_private_file(path))
    except ValueError as error:
        raise ExitError(ExitCode.CREDENTIALS, f"{path} is no certificate ({error}): restore it") from None
    begin, end = (int(each.timestamp() * 1000) for each in (found.not_valid_before_utc, found.not_valid_after_utc))
    return judge_certificate(check, begin, end, int(now.timestamp() * 1000), renew)


def check_databases(config: HubConfig) -> Iterator[Finding]:
    """Whether every database can be read, is whole and of this version."""
    config.check_database()
    if config.store.url:
        yield Finding("database", Severity.FINE, "the server answers and keeps what it says it has written")
        return
    root = config.state_dir().root
    for part in PARTS:
        path = root / part.file
        condition, version = probe_database(path, _SCHEMA)
        check = f"database {part.name}"
        if aside := list_set_aside(path):
            text = f"a damaged one was set aside: {', '.join(aside)}"
            yield Finding(check, Severity.WARNING, text, "keep it for what it proves, or delete it; look at the disk")
        if find_mark(path).exists() and is_missing(path):
            advice = f"restore a backup, or begin it anew: skerry hub run --begin-anew {part.file}"
            yield Finding(check, Severity.PROBLEM, f"{path} is missing or empty, and this hub had one", advice)
        elif condition is DatabaseCondition.DAMAGED:
            yield Finding(check, Severity.PROBLEM, f"{path} is damaged", "restore it from a backup; look at the disk")
        elif version > part.newest:
            text = f"{path}: written by a newer version (schema {version}, here {part.newest})"
            yield Finding(check, Severity.PROBLEM, text, "install that version again")
        else:
            yield Finding(check, Severity.FINE, condition)


def check_models(config: HubConfig) -> Iterator[Finding]:
    """Whether there is something to serve, and every model's two halves are there and belong together."""
    folder = config.models_folder
    within = sorted(path for path in folder.iterdir() if path.is_dir()) if folder and folder.is_dir() else []
    if folder and not folder.is_dir():
        yield Finding("models", Severity.PROBLEM, f"{folder} is not there", "make it, or correct models_folder")
    if not (config.models or within or config.llm or config.remote):
        yield Finding("models", Severity.PROBLEM, "none to serve", "set models = [bundle folder, ...], or [[llm]]")
    for path in (*config.models, *within):
        try:
            manifest = open_bundle(path).manifest
            open_hub_part(path, manifest)
        except BundleError as error:
            yield Finding("model", Severity.PROBLEM, str(error), "publish or fetch it again")
            continue
        yield Finding("model", Severity.FINE, manifest.model)


def check_policies(config: HubConfig) -> Iterator[Finding]:
    """Whether every policy that is a file can be read."""
    found = compile_policies(config.policies, lambda _: None)
    told = f"{len(found)} from files" if config.policies else "none named: those that devices name are served"
    yield Finding("policies", Severity.FINE, told)


def check_repository(state: StateDir, now: datetime) -> Iterator[Finding]:
    """Whether the update repository has keys, and no role of it has ended or soon will."""
    repository = Repository(state.repository, OnlineKeys(state.online))
    standing = repository.current_metadata()
    if not standing:
        yield Finding("repository", Severity.WARNING, "no signing keys: devices get no updates", _NEW_KEYS)
        return
    ended = [role for role, metadata in standing.items() if metadata.signed.is_expired(now)]
    waning = [role for role in repository.expiring_roles(now) if role not in ended]
    if ended:
        text = f"ended: {', '.join(sorted(ended))}; devices take nothing new"
        yield Finding("repository", Severity.PROBLEM, text, "sign anew: skerry repository status says where")
    if waning:
        advice = "sign anew: skerry repository status says where"
        yield Finding("repository", Severity.WARNING, f"ends soon: {', '.join(sorted(waning))}", advice)
    if not ended and not waning:
        yield Finding("repository", Severity.FINE, f"{len(standing)} roles, none of them ends soon")


def check_broker_program(config: HubConfig) -> Iterator[Finding]:
    """Whether the broker that the hub starts is installed."""
    if config.broker.start:
        yield Finding("broker", Severity.FINE, find_program(config.broker.program))
    else:
        yield Finding("broker", Severity.FINE, f"somebody else's, at {config.broker.host}:{config.broker.port}")


def check_ports(config: HubConfig) -> Iterator[Finding]:
    """Whether the hub could listen where it is told to; not to be asked while it does."""
    for section, host, port in (
        ("api", config.api.host, 0 if config.api.unix else config.api.port),
        ("broker", config.broker.host, config.broker.port if config.broker.start else 0),
    ):
        if why := probe_port(host, port) if port else "":
            advice = f"another program has it: choose another [{section}] port"
            yield Finding(f"port of {section}", Severity.PROBLEM, f"{host}:{port}: {why}", advice)
        else:
            yield Finding(f"port of {section}", Severity.FINE, f"{host}:{port} is free" if port else "none is needed")
