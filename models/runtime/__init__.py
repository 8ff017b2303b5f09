"""Running a bundle's edge model: the runner, the feature codec, privacy transforms and the golden self-test.

`runner` is the interface and its test double, `onnx_runner` the ONNX Runtime implementation, `feature_codec`,
`codec_ans` and `codec_steps` encode feature codes, `transforms` changes codes before they leave, `chain` names a chain
of cut, codec and transforms, `golden` checks a runner against stored answers. It may import `models.bundle` and
`wire.protocol`; only `onnx_runner` loads ONNX Runtime. Both the device and the hub import it.
"""
