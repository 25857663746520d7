"""What all sections of the schema of params.yaml are made of."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

# Beyond these limits a number is a slip of the pen, which would exhaust memory or overflow in some stage.
HUGE = 10**9
FILE_NAME_BYTES = 255
PositiveInt = Annotated[int, Field(ge=1, le=HUGE)]
NonNegativeInt = Annotated[int, Field(ge=0, le=HUGE)]
SmallPositiveInt = Annotated[int, Field(ge=1, le=1000)]  # of layers, threads and the like
Width = Annotated[int, Field(ge=1, le=10**6)]
Real = Annotated[float, Field(le=HUGE, allow_inf_nan=False)]
NonNegative = Annotated[Real, Field(ge=0)]
AboveZero = Annotated[Real, Field(gt=0)]
Fraction = Annotated[Real, Field(ge=0, le=1)]
# A name becomes part of stage names, commands and paths.
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


def _readable(text: str) -> str:
    """Texts name files and models, or are looked for in others."""
    if not text.strip() or not text.isprintable():
        raise ValueError("must be text without line breaks and control characters")
    if any(len(part.encode()) > FILE_NAME_BYTES for part in text.split("/")) or len(text) > 4 * FILE_NAME_BYTES:
        raise ValueError("is longer than a file name may be; shorten it")
    return text


NonEmptyStr = Annotated[str, Field(min_length=1), AfterValidator(_readable)]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Item = TypeVar("Item")
ListOf = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]  # a list in the file
NonEmptyList = Annotated[ListOf[Item], Field(min_length=1)]


class ConfigModel(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
