"""What all sections of the schema of params.yaml are made of."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Real = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[Real, Field(ge=0)]
AboveZero = Annotated[Real, Field(gt=0)]
Share = Annotated[Real, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
# A name becomes part of stage names, commands and paths.
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def tuple_of(item: Any, **limits: Any) -> Any:
    return Annotated[tuple[item, ...], BeforeValidator(_as_tuple), Field(**limits)]


class Section(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
