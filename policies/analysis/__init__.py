"""Static analysis of policies for people: nothing here runs on a device's decision path. Pure.

- `check`: contradictions, unreachable rules, expiry
- `prove`: exhaustive proof that no field above a label leaves
- `diff`: what one policy allows that another does not
- `explain`, `facts`, `probes`: one sample's decisions in words; test cases with expectations
- `summary`, `wording`: a policy in sentences
- `cases`: enumeration of all cases that a policy's rules distinguish
"""
