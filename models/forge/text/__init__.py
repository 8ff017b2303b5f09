"""Makes versions of kind `text`: a small classifier of short texts for the device, a prompt for a language model.

`labelled` reads labelled texts, `hashing` turns texts into hashed n-grams (in numpy and as ONNX), `classifier` trains
and measures, `version` writes both parts.
"""
