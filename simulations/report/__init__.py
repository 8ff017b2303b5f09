"""Reports of a run: the outcome value, its figures and expectations, plots, the HTML page, comparison and files.

`outcome`: the value (JSON). `expectations`: figures by name and bounds on them. `formatting`: numbers and times as
text. `plots`: plotly panels. `page`: the HTML report. `comparison`: two runs side by side. `files`: reading and
writing.

Imports `checking.events` and `scenario`; only `files` writes.
"""
