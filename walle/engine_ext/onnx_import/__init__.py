"""ONNX models as `.walle` models. Needs the package `onnx`.

Map the file → check → inline functions → infer shapes → newest versions → the engine's operators → write.
"""
