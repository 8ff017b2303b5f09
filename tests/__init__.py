"""Tests of every package; `ROOT` is the checkout they stand in."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
