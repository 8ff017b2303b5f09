"""Training of a split model: learned bottleneck, early exit, confidence gate and novelty score, by distillation.

`distillation` is the training loop; `bottleneck` holds encoder and decoder, `early_exit` the local answer, `gate` the
learned gate; `losses` and `teacher` serve the loop; `modules` assembles the device's and the hub's half; `calibration`
fits temperatures (numpy only); `determinism` fixes seeds and threads.

May import `forge.cache`, `forge.data` and `forge.partition`. Needs torch; files are written by `forge.cache` only.
"""
