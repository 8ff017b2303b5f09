"""Routes of what a question carries: the sample itself, early features, learned codes; and the frontier between them.

- `frontier`: bytes, quality, loss and leakage of every code path, and which of them ships; `judgement` measures them;
- `sample_code` (by input: `transform_code`, `column_code`, `digit_code`) and `weighted_sample`: the sample itself;
- `early_features`: a cut's features at few levels;
- `learned`: a transform of a cut's features (`draft_codes`, `feature_transform`, `feature_codes`), taught by
  `path_training`, rounded as the codec does by `step_rounding`.

Rule: all paths of a frontier share one edge and are judged on the calibration part; the held-out part chooses nothing.
"""
