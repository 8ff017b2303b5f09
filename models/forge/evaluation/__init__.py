"""Evaluation of the two shipped halves: accuracy, confidence calibration, deferral curves and risk guarantees.

`shipped` runs both halves over arrays; `outcomes` keeps who was right; `deferral` computes the cost-quality frontier;
`risk_control` proves a threshold; `metrics` turns them into a manifest's figures; `recalibrate` does the
same for a finished bundle on other data; `baselines` measures what compressing the raw sample would cost.

`deferral`, `outcomes` and `risk_control` are numpy only and pure but for reading a file of outcomes; the others import
`forge.data`, `forge.export`, `forge.training`, `models.runtime` and `models.graph`.
"""
