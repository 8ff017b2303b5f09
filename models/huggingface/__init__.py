"""Hugging Face checkpoints as hub models: classifiers of transformers for text and pictures, used as they lie on disk.

`checkpoint` reads which tensors a folder has, `architecture` builds the network without its weights, `tracing` turns it
into a graph of allowed operations, `decoder` finds how codes of samples become samples again, `importer` writes the
version: the shards are linked as they are. transformers is needed here alone (extra `hf`); what runs the model never
imports it. May import `models.graph`, `models.runtime` and `models.bundle`.
"""
