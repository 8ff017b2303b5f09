"""Checkers of a run that share no code with the product: question history, bounds, and egress by the policy's text.

`events`: the facts and the report. `history`: lost and doubled questions. `bounds`: budgets and waves. `egress`: what
leaves a device against the policy's text. `databases`: the history of a real run from its databases.

Imports `edge_agent.question.records` and `wire.protocol` alone of the product; only `databases` reads files.
"""
