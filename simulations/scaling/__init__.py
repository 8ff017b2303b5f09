"""Scaling of a model's replicas in virtual time.

`curves`: arrivals over a day, in a storm. `rules`: how many replicas, by Skerry's policy and by others beside it.
`replay`: a curve against replicas that take their time to start.
"""
