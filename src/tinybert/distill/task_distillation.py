"""Distillation of a task student on rows, the core of both phases and of the Python call."""

from dataclasses import dataclass

from tinybert.data.encoding import Encoded
from tinybert.data.tasks import Task
from tinybert.distill.batches import ExampleBatches, labeled_by_teacher
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import Entry, TrainRun
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.models.checkpoints import Classifier, TaskModel


@dataclass(frozen=True)
class TaskDistillation:
    """A student of a task, its teacher, and what the student imitates.

    Attributes:
        loss: Trained with the student.
        cache: Holds the teacher's outputs.
    """

    student: Classifier
    teacher: TaskModel
    loss: DistillationLoss
    task: Task
    cache: TeacherCache

    def run(self, examples: Encoded, asked: Encoded, settings: Settings, run: TrainRun) -> list[Entry]:
        """Trains the student in place; returns the loss curve.

        Args:
            examples: The rows as the student reads them.
            asked: The same rows as the teacher reads them.
            settings: How to train.
            run: What is reported.
        """
        if "hard" in self.loss.weights:
            examples = labeled_by_teacher(examples, asked, self.teacher, self.task)
        batches = ExampleBatches(examples, batch_size=settings.training.batch_size, seed=settings.seed)
        cached = CachedTeacher(self.teacher, self.loss, asked, self.cache)
        return train(self.student, self.loss, batches, settings, teacher=cached, run=run)
