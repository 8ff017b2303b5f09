"""Routes of what a question carries: the sample itself, early features, learned codes; and the frontier between them.

Rule: all paths of a frontier share one edge and are judged on the calibration part; the held-out part chooses nothing.
"""
