"""Route of the sample itself: ids as digits, tables by levels, signals and pictures by a transform, in few bytes.

Rule: the codes carry the sample's own sensitivity label; nothing here is taught.
"""
