"""Route of codes at the cut: transforms fitted to the cut's features, and the teaching of learned codes from them.

Rule: the device's edge is trained already and stays as it is.
"""
