"""Model zoo: example networks with their data sets and training, as users would bring them to the forge.

One module per data set (`load_digits`, `cifar10`, `fashion_mnist`, `load_clinc150`, `judge_mitbih`, `judge_cmapss`),
each with `build_model` and `samples` for `skerry models forge`. `datasets` reads the files below `SKERRY_DATA`,
`training` trains and caches weights, `resnet9` and `ngrams` are networks.

May import `models.forge.data`, `models.forge.training.determinism` and `models.forge.cache`; the product does not
import the zoo but for the demo's `load_digits`.
"""
