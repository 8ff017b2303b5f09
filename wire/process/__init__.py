"""What every Skerry process needs of its operating system and service manager.

- `config`: one TOML file plus environment variables, as msgspec structs; `config_errors`: its errors in plain words
- `exit_codes`: the exit codes of all commands and the error that carries one
- `files`: private files (mode 0600), atomic writes, bounded reads
- `logging`: rate-limited JSON log lines without payloads
- `tracing`: spans with W3C trace ids (pure); `trace_export`: to a file or an OpenTelemetry collector
- `daemon`: sd_notify, watchdog interval, folder lock, no core dumps
"""
