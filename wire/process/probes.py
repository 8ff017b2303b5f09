"""Probes of this machine for checkups: whether a port is free, a SQLite database whole. Nothing is changed."""

import shutil
import socket
import sqlite3
from enum import StrEnum
from pathlib import Path


class DatabaseCondition(StrEnum):
    """What a look at a SQLite file finds."""

    ABSENT = "none yet: it is made at the first start"
    WHOLE = "whole"
    DAMAGED = "damaged"


def measure_free_bytes(folder: Path) -> int:
    """Bytes that this user may still write where a folder lies."""
    return shutil.disk_usage(folder).free


def probe_port(host: str, port: int) -> str:
    """Why a program could not listen on this address now; "" if it could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def probe_database(path: Path, question: str = "pragma user_version") -> tuple[DatabaseCondition, int]:
    """Condition of a SQLite file, and the number that `question` gives (0 where it gives none); it may be in use."""
    if not path.exists():
        return DatabaseCondition.ABSENT, 0
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            whole = db.execute("pragma quick_check(1)").fetchone() == ("ok",)
            row = db.execute(question).fetchone() if whole else None
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return DatabaseCondition.WHOLE, 0
        return DatabaseCondition.DAMAGED, 0
    except sqlite3.DatabaseError:
        return DatabaseCondition.DAMAGED, 0
    return (DatabaseCondition.WHOLE if whole else DatabaseCondition.DAMAGED), int(row[0]) if row else 0
