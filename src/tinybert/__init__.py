"""Knowledge distillation of BERT: TinyBERT and its family.

`distill_student` and its classes are imported when they are first used, because PyTorch's import takes a second.
"""

from typing import Any

__all__ = ["Architecture", "DistillSettings", "DistilledStudent", "distill_student"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tinybert import api

    return getattr(api, name)
