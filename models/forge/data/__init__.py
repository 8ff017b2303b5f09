"""Samples and targets as arrays: the forge's data types, validation, packing and image augmentation.

`types` holds `Data`, `Part` and `ForgeError`; `coerce` turns what a user returns into `Data` and checks it; `packing`
makes a model of several inputs a model of one; `augment` varies and damages images; `digits` loads the demo's set.

May import nothing else of the forge. No I/O but scikit-learn's own copy of the digits; random draws come from
generators that are passed in or from a fixed seed.
"""
