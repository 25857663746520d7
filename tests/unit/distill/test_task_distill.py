"""Task distillation: labels of varied rows; where answers are kept."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support.builders import TEACHER, classifier
from tests.unit.distill.test_loop import examples
from tinybert.data.encoding import encode
from tinybert.data.tasks import TASKS
from tinybert.distill.task_distill import labelled_by_teacher, teacher_cache
from tinybert.evaluate.task_scores import predict


def test_varied_rows_take_the_teachers_label_and_originals_keep_theirs():
    teacher, rows = classifier(TEACHER, seed=2), examples(40)
    with torch.no_grad():
        teacher.classifier.weight.mul_(50)  # answers of both kinds
    answers = predict(teacher, rows, TASKS["cola"])
    varied = np.arange(40) % 2 == 1
    found = labelled_by_teacher(replace(rows, varied=varied), teacher, TASKS["cola"]).labels
    assert np.array_equal(found[~varied], rows.labels[~varied])
    assert np.array_equal(found[varied], answers[varied])
    assert (answers[varied] != rows.labels[varied]).any()
    assert found.dtype == np.int64


def test_rows_without_variations_are_left_alone():
    rows = replace(examples(4), varied=np.zeros(4, dtype=bool))
    assert labelled_by_teacher(rows, classifier(TEACHER), TASKS["cola"]) is rows


def test_encoding_knows_the_varied_rows():
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    rows = [{"sentence": "a", "label": 1, "idx": 0}, {"sentence": "b", "label": 1, "idx": 0, "augmented": True}]
    assert encode(rows, TASKS["cola"], tokenizer, max_length_tokens=8).varied.tolist() == [False, True]


def test_the_store_has_the_limit_of_params_and_none_means_live():
    def store(gigabytes):
        return teacher_cache(SimpleNamespace(glue=SimpleNamespace(teacher_cache_gb=gigabytes)))

    assert store(1.5).limit_bytes == 1_500_000_000
    assert store(0.0) is None
