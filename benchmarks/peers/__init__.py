"""Programs that other frameworks run in environments of their own: model servers and policy engines."""
