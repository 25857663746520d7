"""The ONNX forms of a model that are written and measured."""

INT8_FORMS = ("dynamic", "qdq", "qoperator")
FORMS = ("fp32", *INT8_FORMS)
