"""Routes of what a question carries: the sample itself, early features, learned codes; and the frontier between them.

- `frontier`: bytes, quality, loss and leakage of every code path, and which of them ships; `judgement` measures them;
- `early_features`: a cut's features at few levels;
- `sample/`: the sample itself, coded; `weighted_sample`: by axes weighted by what the given model reads;
- `features/`: transforms of the features at the cut, and the learned codes that are taught from them.

Rule: all paths of a frontier share one edge and are judged on the calibration part; the held-out part chooses nothing.
"""
