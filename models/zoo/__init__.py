"""Model zoo: example networks with their data sets and training, as users would bring them to the forge.

One module per data set (`digits`, `cifar10`, `fashion_mnist`, `clinc150`, `mitbih`, `cmapss`),
each with `build_model` and `samples` for `skerry models forge`. `datasets` reads the files below `SKERRY_DATA`,
`training` trains and caches weights, `resnet9` and `ngrams` are networks.

May import `models.forge.data`, `models.forge.training.determinism` and `models.forge.cache`; the product does not
import the zoo but for the demo's `digits`.
"""
