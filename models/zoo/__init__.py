"""Model zoo: example networks with their data sets and training, as users would bring them to the forge.

One module per network (`digits`, `fashion_mnist`, `mitbih`, `cmapss`), each with `build_model` and `samples` for
`skerry models forge`. `sources` says where the public data sets come from and finds them, `packing` makes them from
what is published, `datasets` reads those of the networks; `training` trains and caches weights, `resnet9` is a network.

May import `models.forge.data`, `models.forge.training.determinism` and `models.forge.cache`; the product imports of the
zoo the demo's `digits`, and `sources` and `packing` for `skerry data` and the data sets of a project.
"""
