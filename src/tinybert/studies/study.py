"""A study: variants of the settings, what is measured of each, and what was published about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tinybert.config.fields import AboveZero, ConfigModel, ListOf, Name, NonEmptyList, NonEmptyStr, PositiveInt
from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.pipeline.errors import UserError

FOLDER = Path("studies")
RELATIONS = ("beats", "equals", "not_below")
REPEATS = {"evaluate": "repeat_task_distill"}  # the stage that measures a further seed of a student
Measured = Annotated[str, Field(pattern=r"^[a-z_]+/[^/:]+:[a-z0-9_{}]+$")]


class Variant(ConfigModel):
    """Overrides of params.yaml for `dvc exp run -S`, and where else than by the study's rule its answers lie."""

    set: ListOf[NonEmptyStr] = ()
    student: Name | None = None
    measured: Measured | None = None


class Claim(ConfigModel):
    """What was published: one variant beats another, equals it, or is not below it; equal is what differs by less
    than the study's margin.
    """

    variant: Name
    beats: Name | None = None
    equals: Name | None = None
    not_below: Name | None = None
    tasks: NonEmptyList[Name] | None = None
    published: NonEmptyStr

    @model_validator(mode="after")
    def _one_relation(self) -> "Claim":
        if len([name for name in RELATIONS if getattr(self, name)]) != 1:
            raise ValueError(f"exactly one of {', '.join(RELATIONS)} is needed, with the other variant's name")
        return self

    @property
    def relation(self) -> str:
        return next(name for name in RELATIONS if getattr(self, name))

    @property
    def other(self) -> str:
        """The variant that this one is compared with."""
        return getattr(self, self.relation)


class Study(ConfigModel):
    """A file of studies/.

    tasks: GLUE tasks, or what `evaluate_domain` measures. measured: <stage>/<instance>:<system> of the answers, where
    {task} and {student} are filled in; the stages that write them are run. repeat: what a further seed repeats: the
    student's task distillation, or the pipeline, teacher and all. set: overrides of every variant; {task} in one
    gives one for each task. one_training: the variants are forms of one trained model, so that of one seed the rows are
    all the chance there is. The first variant is what the others are shown against.
    """

    question: NonEmptyStr
    source: NonEmptyStr
    tasks: NonEmptyList[Name]
    student: Name
    measured: Measured = "evaluate/{task}-{student}:student"
    repeat: Literal["student", "pipeline"] = "student"
    seeds: PositiveInt = 3
    margin: AboveZero = 0.01
    one_training: bool = False
    set: ListOf[NonEmptyStr] = ()
    variants: dict[Name, Variant] = Field(min_length=2)
    claims: NonEmptyList[Claim]

    @model_validator(mode="after")
    def _claims_fit(self) -> "Study":
        for claim in self.claims:
            for name in (claim.variant, claim.other):
                if name not in self.variants:
                    raise ValueError(f"claims name the variant {name}; there are {', '.join(self.variants)}")
            for task in claim.tasks or ():
                if task not in self.tasks:
                    raise ValueError(f"claims name the task {task}; there are {', '.join(self.tasks)}")
        return self

    @model_validator(mode="after")
    def _repeats_are_measured(self) -> "Study":
        stages = {self.measured_of(name).split("/")[0] for name in self.variants}
        if self.repeat == "student" and (others := stages - set(REPEATS)):
            raise ValueError(f"repeat: student measures by {', '.join(REPEATS)}, not {', '.join(others)}; say pipeline")
        return self

    def measured_of(self, variant: str) -> str:
        """The place of a variant's answers, {task} still open."""
        chosen = self.variants[variant]
        return (chosen.measured or self.measured).replace("{student}", chosen.student or self.student)

    def choose_tasks(self, asked: Sequence[str] | None, params: Params) -> list[str]:
        """The tasks asked for, or all of those that params have settings for; UserError where there is none."""
        usable = [task for task in self.tasks if task not in TASKS or getattr(params.tasks, task)]
        for task in asked or ():
            if task not in usable:
                raise UserError(
                    f"--tasks {task}: not in this study or not in params.yaml; choose of {', '.join(usable)}"
                )
        if not usable:
            raise UserError(
                f"params.yaml has settings for none of the study's tasks: tasks.{', glue.'.join(self.tasks)}"
            )
        return list(asked or usable)


def load_study(name: str, folder: Path = FOLDER) -> Study:
    """Reads studies/<name>.yaml; UserError naming those that there are, or the key that is wrong."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise UserError(f"NAME={name}: no such study; choose one of: {known}")
    try:
        return Study.model_validate(YAML(typ="safe").load(path))
    except YAMLError as error:
        raise UserError(f"{path}: no valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        lines = (f"{path}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UserError("\n".join(lines)) from None
