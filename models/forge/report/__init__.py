"""HTML report of one forge run, beside the bundle: plots, tables, and the outcomes as plain numpy.

`report` writes the files; `page` renders the HTML; `charts` draws SVG plots; `result` holds the types of a finished
candidate. The report is not part of the bundle and decides nothing of its content.

May import every other folder of the forge but `pipeline`. Pure but for `report`, which writes files.
"""
