"""Test doubles for the device: hubs in memory, an update repository, disks that fail, and processes that are killed."""
