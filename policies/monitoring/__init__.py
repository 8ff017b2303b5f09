"""Sequential tests and retry timing for a device. Pure.

- `drift`: e-detectors for distribution shift of novelty and confidence
- `risk`: watches whether a calibrated threshold keeps its error rates
- `backoff`: exponential backoff with full jitter

It imports nothing but the standard library.
"""
