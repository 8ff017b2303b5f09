"""The forge as one run: loads model and data, tries cuts, builds a candidate per cut, writes the bundle and its report.

`forge` is the entry point; `loading` finds the user's model and data by `package.module:function`; `candidate` trains,
exports and evaluates one cut; `bundle` writes the files; `demo` forges the digits bundle of the demo.

May import every other folder of the forge and `models.zoo` (the demo's network). Not pure: writes files, measures time.
"""
