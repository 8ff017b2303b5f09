"""The device's own console at `/`: one page of static files that asks the local API, for what only the device knows."""
