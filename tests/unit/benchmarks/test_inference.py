"""The benchmark of inference: what it makes, in which order it times, what it prints."""

import re
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from benchmarks import inference
from benchmarks.inference import SIZES, STUDENT, TEACHER, System, report, speed_up, take_turns, write_variants
from tinybert.compress.onnx_files import OnnxClassifier, random_feeds
from tinybert.pipeline.paths import VARIANTS


def system(variant: str, times_ms: list[float], model: str = TEACHER, file_mb: float = 1.0) -> System:
    return System(model, variant, None, file_mb, times_ms)


def test_all_variants_compute_the_same_model_when_smoothed(tmp_path):
    work = SIZES["small"]
    write_variants(work.student, work, tmp_path / "student")
    feeds = random_feeds(work.batch_rows, work.length_tokens, work.vocabulary)
    logits = [OnnxClassifier(tmp_path / "student" / f"{variant}.onnx", 1).logits(feeds) for variant in VARIANTS]
    for found in logits[1:]:
        np.testing.assert_allclose(found, logits[0], atol=0.01)
    operators = [node.op_type for node in onnx.load(tmp_path / "student/int8-qoperator.onnx").graph.node]
    assert operators.count("QuantizeLinear") == 4 + 5 + 1
    dynamic = [node.op_type for node in onnx.load(tmp_path / "student/int8-dynamic.onnx").graph.node]
    assert dynamic.count("Clip") == 4 + 5 + 1 - 2
    assert operators.count("Mul") == 4 + 5 + 1 - 2 + 3  # none for attention's two outputs; those of the three tables


def test_every_other_round_goes_backwards_without_warm_up():
    order = []

    def recorder(name):
        return SimpleNamespace(logits=lambda feeds: order.append(name))

    contestants = [System(TEACHER, name, recorder(name), 1.0, []) for name in ("a", "b", "c")]
    take_turns(contestants, SIZES["small"], warmup_rounds=1, rounds=2)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert [len(each.times_ms) for each in contestants] == [2, 2, 2]


def test_the_ratio_is_that_of_the_rounds():
    # 4/2, 9/3, 8/1: the median is 3, where that of the medians would be 8/2
    assert speed_up(system("fp32", [4.0, 9.0, 8.0]), system("int8-qdq", [2.0, 3.0, 1.0])) == pytest.approx(3.0)


def test_goals_are_printed_and_the_fastest_student_counts(capsys):
    found = {
        (TEACHER, variant): system(variant, [time_ms])
        for variant, time_ms in zip(VARIANTS, (120, 40, 80, 30), strict=True)
    }
    times = zip(VARIANTS, (9, 3, 8, 4), (57.0, 14.9, 14.8, 14.7), strict=True)
    found |= {(STUDENT, variant): system(variant, [time_ms], STUDENT, size) for variant, time_ms, size in times}
    assert report(found) == pytest.approx(40.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[8:] == [
        "goal: BERT-base int8-dynamic over its FP32 at least 3: reached (3.00)",
        "goal: BERT-base int8-qdq over its FP32 at least 2: missed (1.50)",
        "goal: BERT-base int8-qoperator over its FP32 at least 3: reached (4.00)",
        "goal: BERT-base FP32 over TinyBERT4 int8-dynamic at least 28: reached (40.00)",
        "goal: TinyBERT4 int8-dynamic at most 15 MB: reached (14.90)",
    ]


def test_prints_each_variant_and_ends_with_the_ratio(run_main):
    lines = run_main(inference, "--sizes", "small", "--rounds", "3", "--threads", "1")
    pattern = r"(\S+) +(\S+) +[\d.]+ ms \([\d.]+ to [\d.]+\) +([\d.]+) x its FP32 +[\d.]+ MB"
    rows = [re.fullmatch(pattern, line).groups() for line in lines[3:11]]
    assert [row[:2] for row in rows] == [(model, variant) for model in (TEACHER, STUDENT) for variant in VARIANTS]
    assert rows[0][2] == rows[4][2] == "1.00"
    assert float(re.fullmatch(r"ratio (\d+\.\d\d)", lines[-1])[1]) > 0
