"""The hub's half of a model as data: a closed graph format of allowed ATen operations, with safetensors weights.

`exporter` traces a torch module, `writer` and `format` turn it into JSON, `builder` and `arguments` build a module from
JSON, `operations` is the allow-list, `module` runs it within memory limits, `shapes` infers sizes without weights,
`weights` writes safetensors, `weight_reader` reads them in one pass, `hub_model` opens a bundle's two graphs. Needs
torch; it may import `models.bundle`, `models.runtime.feature_codec` and `models.forge.data.types`.
"""
