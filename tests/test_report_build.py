"""The report on a tree of metrics whose numbers are set by hand."""

import csv
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tinybert.errors import UserError
from tinybert.files import write_json, write_jsonl
from tinybert.params import check_params
from tinybert.report.build import build_report

PARAMS = Path(__file__).resolve().parents[1] / "params.yaml"
NASTY = '<script>alert("x")</script> & | `y`'
FORMS = ("fp32", "dynamic", "qdq", "qoperator")
PERPLEXITY = {"lazy": 8.512, "attentive": 9.034, "little_professor": 8.127}
QUIZ_TOP1 = {"lazy": 0.31, "attentive": 0.27, "little_professor": 0.29}


@pytest.fixture(scope="module")
def params():
    tree = YAML(typ="safe").load(PARAMS)
    tree["glue"]["tasks"] = ["mrpc", "mnli"]
    tree["glue"]["students"] = ["tinybert4"]
    tree["glue"]["mnli"] = tree["glue"]["mrpc"]
    tree["domain"]["students"] = list(PERPLEXITY)
    tree["quantization"]["models"] = ["teacher", "tinybert4"]
    tree["pruning"]["sparsities_percent"] = [20]
    return check_params(tree)


@pytest.fixture(scope="module")
def made(params, tmp_path_factory):
    """The tree with a report in it, and the report; not to be changed."""
    root = tmp_path_factory.mktemp("made")
    write_tree(root)
    return root, build_report(params, root)


@pytest.fixture
def tree(made, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(made[0], tmp_path / "tree"))


def write_tree(root: Path) -> None:
    write_corpus_metrics(root / "metrics")
    write_domain_metrics(root)
    for task, shift in {"mrpc": 0.0, "mnli": 0.05}.items():
        write_task_metrics(root, task, shift)
    curve = [
        {"step": 10 * i, "epoch": 0, "learning_rate": 1e-3 / i, "total": 7.7 / i, "hard": 7.7 / i} for i in range(1, 30)
    ]
    write_curve(root / "reports/curves/prepare_teacher.csv", curve)
    write_curve(root / "reports/curves/general_distill/lazy.csv", [{"step": 1, "epoch": 0, "total": 6.25, NASTY: 1.0}])
    write_curve(root / "reports/curves/task_distill_intermediate/mrpc-tinybert4.csv", [])
    write_json(root / "reports/timings/prepare_teacher.json", {"seconds": 123.4, "peak_memory_mb": 987})


def write_corpus_metrics(metrics: Path) -> None:
    write_json(
        metrics / "prepare_corpus.json", {what: {"train": 1234, "heldout": 137} for what in ("documents", "words")}
    )
    write_json(metrics / "prepare_tokenizer.json", {"pieces": 3999})
    tally = {"found": 1200, "kept": 900, "kept_share": 0.75}
    history = tally | {"terms": {"war": {"found": 40, "kept": 30, "kept_share": 0.75}, NASTY: tally}}
    found = {"documents": tally, "words": tally, "subjects": {"history": history}}
    write_json(metrics / "filter_corpus.json", {"train": found, "heldout": found})
    blocks = {"documents": 9, "blocks": 777, "tokens": 49999, "unknown_share": 0.0123}
    for corpus in ("general", "domain"):
        write_json(metrics / f"tokenize/{corpus}.json", {"train": blocks, "heldout": blocks})


def write_domain_metrics(root: Path) -> None:
    teacher = {"parameters": 1_816_224, "steps": 290, "loss": {"total": 2.5, "hard": 2.5}, "frequency_accuracy": 0.0456}
    heldout = {"loss": 2.0, "perplexity": 7.389, "accuracy": 0.613}
    write_json(root / "metrics/prepare_teacher.json", teacher | {"heldout": heldout})
    training = {"parameters": 345_678, "steps": 290, "loss": {"total": 3.25, "hard": 3.25}}
    for student in (*PERPLEXITY, "tinybert4"):
        write_json(root / f"metrics/general_distill/{student}.json", training)
    for student in PERPLEXITY:
        write_json(root / f"metrics/domain_distill/{student}.json", training)
        examined = {
            "teacher": examination(5.018, 0.51),
            "student": examination(PERPLEXITY[student], QUIZ_TOP1[student]),
            "untrained": examination(4012.5, 0.002),
            "quiz_dropped": 17,
            "agreement": {what: {"top1": 0.717, "kl": 0.456} for what in ("general", "domain", "quiz")},
        }
        write_json(root / f"metrics/evaluate_domain/{student}.json", examined)
        best = [{"token": token, "probability": 0.4} for token in ("paris", NASTY, "rome", "oslo", "bern")]
        answer = {"subject": "geography", "prompt": f"{NASTY} is [MASK].", "answer": "paris"}
        write_json(root / f"reports/answers/{student}.json", [answer | {"teacher": best, "student": best}])


def examination(perplexity: float, top1: float) -> dict:
    text = {"loss": 2.1, "perplexity": perplexity, "accuracy": 0.55}
    by_subject = {"questions": 100, "top1": top1, "top5": 0.6}
    return {"general": text, "domain": text, "quiz": {"all": by_subject, "history": by_subject}}


def write_task_metrics(root: Path, task: str, shift: float) -> None:
    metrics = root / "metrics"
    names = ("accuracy", "f1") if task == "mrpc" else ("accuracy",)
    training = {"parameters": 345_678, "steps": 141, "loss": {"total": 0.5, "prediction": 0.5}}
    write_json(
        metrics / f"prepare_glue/{task}.json", {"examples": {"train": 1500, "dev": 500}, "majority": {"accuracy": 0.6}}
    )
    write_json(metrics / f"finetune_teacher/{task}.json", training | {"dev": dict.fromkeys(names, 0.85)})
    write_json(metrics / f"augment/{task}.json", {"original": 1500, "augmented": 4321})
    write_json(metrics / f"task_distill_intermediate/{task}-tinybert4.json", {"steps": 0, "loss": {}})
    write_json(metrics / f"task_distill_prediction/{task}-tinybert4.json", training)
    compared = {
        "teacher": dict.fromkeys(names, 0.85 + shift),
        "student": dict.fromkeys(names, 0.7321 + shift),
        "majority": dict.fromkeys(names, 0.6 + shift),
        "retention": {"plain": 0.8613, "above_majority": 0.5284 if task == "mrpc" else None},
        "collapsed": task == "mnli",
    }
    split = {"split": "dev" if task == "mrpc" else "dev_matched", "selection": "none: the last step"}
    further = {"further_splits": {"dev_mismatched": compared}} if task == "mnli" else {}
    sizes = {"parameters": {"teacher": 1_816_224, "student": 345_678}}
    write_json(metrics / f"evaluate/{task}-tinybert4.json", split | compared | further | sizes)
    pruned = {"target": 0.2, "sparsity": 0.20004, "dev": dict.fromkeys(names, 0.7219)}
    size = {"size_mb": {"raw": 1.389, "compressed": 1.201}}
    write_json(metrics / f"prune/{task}-tinybert4-20.json", training | pruned | size)
    for model in ("teacher", "tinybert4"):
        write_quantized(root, f"{task}-{model}", names)
    rows = [{"idx": 0, "label": 1, **texts("alone")}, {"idx": 1, "label": 0, **texts(f"first {NASTY}")}]
    rows += [{"idx": 1, "label": 0, **texts(f"varied {i}")} for i in range(9)]
    write_jsonl(root / f"data/augmented/{task}/train.jsonl", rows)


def texts(text: str) -> dict[str, str]:
    return dict.fromkeys(("sentence1", "sentence2", "premise", "hypothesis"), text)


def write_quantized(root: Path, instance: str, names: tuple[str, ...]) -> None:
    """The smallest form loses too much, the next one exactly a point."""
    score = {"fp32": 0.73, "dynamic": 0.729, "qdq": 0.72, "qoperator": 0.5}
    raw_mb = {"fp32": 44.44, "dynamic": 15.15, "qdq": 12.12, "qoperator": 11.11}
    small = 1.0 if "teacher" in instance else 0.1
    forms = {
        form: {
            "dev": dict.fromkeys(names, score[form]),
            "agreement": 0.987,
            "difference_95": {"low": -0.0123, "high": 0.0042},
            "size_mb": {"raw": small * raw_mb[form], "compressed": small * raw_mb[form] / 2},
        }
        for form in FORMS
    }
    write_json(root / f"metrics/quantize/{instance}.json", forms)
    if "mrpc" in instance:
        times = {"median": 240.0 * small, "p10": 230.0 * small, "p90": 260.5 * small}
        batches = ("batch_1", "batch_32", "dev_batch_1", "dev_batch_32")
        latency = {form: dict.fromkeys(batches, times) for form in FORMS}
        write_json(root / f"reports/latency/{instance}.json", {"threads": 2, "dev_examples": 8} | latency)


def write_curve(path: Path, points: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(points[0]) if points else ["step", "total"])
        writer.writeheader()
        writer.writerows(points)


class Outline(HTMLParser):
    """Tags, the rows of cell texts, and what the page refers to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.rows, self.references, self.ids = [], [], [], []
        self.in_cell = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.references += [found[name] for name in ("src", "href", "srcset", "action") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.rows[-1][-1] += data


def page(root: Path) -> str:
    return (root / "reports/index.html").read_text(encoding="utf-8")


def test_the_page_shows_the_numbers_of_the_metrics(made):
    rows = Outline(page(made[0])).rows
    for row in (
        ["teacher", "1,816,224", "5.02", "5.02", "0.510", "0.600", "–", "–"],
        ["little_professor", "345,678", "8.13", "8.13", "0.290", "0.600", "0.717", "0.456"],
        ["untrained", "345,678", "4,012.50", "4,012.50", "0.002", "0.600", "–", "–"],
        ["lazy", "history", "100", "0.310", "0.600"],
        ["mrpc", "tinybert4", "accuracy", "0.850", "0.732", "0.600", "86.1 %", "52.8 %", "f1 0.864", ""],
        ["mnli mismatched", "tinybert4", "accuracy", "0.900", "0.782", "0.650", "86.1 %", "–", "0.818", "collapsed"],
        ["mrpc", "test", "f1", "0.875", "0.864", "0.873"],
        ["mrpc", "tinybert4", "qdq", "0.720", "-0.012 to +0.004", "98.7 %", "1.21", "0.61", "24.0", "24.0", "size"],
        [
            "mrpc",
            "tinybert4",
            "fp32",
            "0.730",
            "-0.012 to +0.004",
            "98.7 %",
            "4.44",
            "2.22",
            "24.0",
            "24.0",
            "size, speed",
        ],
        ["mnli", "teacher", "fp32", "0.730", "-0.012 to +0.004", "98.7 %", "44.44", "22.22", "–", "–", ""],
        ["mrpc", "tinybert4", "dynamic", "32", "128 tokens", "24.00", "23.00", "26.05", "10.0 ×"],
        ["mrpc", "tinybert4", "dynamic", "1", "dev rows", "24.00", "23.00", "26.05", "10.0 ×"],
        ["mrpc", "tinybert4", "20 %", "20.0 %", "0.732", "0.722", "1.39", "1.20"],
        ["history", "war", "40", "30", "75.0 %"],
        ["domain", "train", "900", "900", "777", "49,999", "1.2 %"],
        ["mnli", "train", "1,500", "4,321"],
        ["task_distill_intermediate", "mrpc-tinybert4", "not trained", "0"],
        ["prepare_teacher", "", "123.4", "987"],
        ["general_distill", "lazy", "–", "–"],
    ):
        assert row in rows


def test_the_page_stands_alone(made):
    html = page(made[0])
    outline = Outline(html)
    assert not re.search(r"https?://", html)
    assert not {"script", "iframe", "img", "object", "embed"} & set(outline.tags)
    assert "url(" not in html and "@import" not in html
    inside = [reference for reference in outline.references if reference != "data:,"]
    assert inside and all(reference.removeprefix("#") in outline.ids for reference in inside)


def test_data_is_escaped(made):
    html = page(made[0])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 4  # a term, a question, an answer, an augmented row, a loss
    assert [f"{NASTY} is [MASK].", "paris", *[f"paris 0.40, {NASTY} 0.40"] * 4] in Outline(html).rows


def test_augmented_rows_begin_with_their_original(made):
    rows = Outline(page(made[0])).rows
    start = rows.index(["mrpc", "original", f"first {NASTY} ⁄ first {NASTY}"])
    assert rows[start + 1] == ["mrpc", "variation", "varied 0 ⁄ varied 0"]
    assert rows[start + 4][:2] == ["mnli", "original"]


def test_curves_are_drawn_and_their_numbers_given(made):
    html = page(made[0])
    # teacher: total, hard; lazy: total, a strange term; none for the learning rate; three fronts, two pruning curves
    assert html.count("<svg") == 4 + 3 + 2
    rows = Outline(html).rows
    assert ["teacher", "10", "0", "0.001", "7.7", "7.7"] in rows
    assert ["teacher", "290", "0", "3.44828e-05", "0.265517", "0.265517"] in rows


def test_summary_names_the_best(made):
    text = " ".join((made[0] / "reports/summary.md").read_text(encoding="utf-8").split())
    assert "little_professor has the lowest perplexity on domain text (8.13; lazy 8.51; attentive 9.03)" in text
    assert "lazy answers most questions (0.310; attentive 0.270; little_professor 0.290)" in text
    assert "tinybert4 keeps 52.8 % of the teacher's lead over the majority guess (mean of 1)" in text
    assert "Collapsed: tinybert4 on mnli matched, tinybert4 on mnli mismatched" in text
    assert "mrpc tinybert4 qdq, 1.21 MB, 0.720 (FP32 0.730)" in text


def test_summary_holds_no_timings_and_is_the_same_again(made, tree, params):
    first = (made[0] / "reports/summary.md").read_bytes()
    write_json(tree / "reports/timings/prepare_teacher.json", {"seconds": 999.9, "peak_memory_mb": 1})
    shutil.rmtree(tree / "reports/latency")
    build_report(params, tree)
    assert (tree / "reports/summary.md").read_bytes() == first
    assert b"123.4" not in first and b"24.0" not in first


def test_terminal_summary_fits(made):
    lines = made[1].summary_text.splitlines()
    assert max(map(len, lines)) <= 100
    assert {"Domain examination", "GLUE tasks, dev split", "ONNX models"} <= set(lines)
    assert "mrpc tinybert4 qdq 0.720 98.7 % 1.21 0.61 24.0 24.0 size" in [" ".join(line.split()) for line in lines]


def test_result_rows_are_the_metrics_unrounded(made):
    rows = {(row["group"], row["model"]): row for row in made[1].result_rows}
    assert len(rows) == len(made[1].result_rows)
    assert rows["domain", "lazy"]["perplexity_domain"] == 8.512
    assert rows["mrpc", "tinybert4"]["score"] == 0.7321
    assert rows["mrpc", "tinybert4"]["retention_above_majority"] == 0.5284
    assert rows["mnli_dev_mismatched", "tinybert4"]["collapsed"] == 1
    assert rows["mrpc", "tinybert4/qdq"]["latency_ms_batch_32"] == 24.0
    assert rows["mrpc", "tinybert4_pruned20"]["sparsity"] == 0.20004


def test_files_of_systems_that_params_do_not_list_change_nothing(made, tree, params):
    write_json(tree / "metrics/evaluate/cola-tinybert6.json", {"split": "dev"})
    write_json(tree / "metrics/evaluate_domain/stranger.json", {})
    build_report(params, tree)
    assert page(tree) == page(made[0])


def test_missing_metrics_are_all_named_with_their_stage(tree, params):
    (tree / "metrics/evaluate/mrpc-tinybert4.json").unlink()
    (tree / "metrics/prepare_teacher.json").write_text("{")
    with pytest.raises(UserError) as error:
        build_report(params, tree)
    teacher, evaluation = str(error.value).splitlines()
    assert teacher.startswith("metrics/prepare_teacher.json: no valid JSON; stage prepare_teacher")
    assert evaluation.startswith("metrics/evaluate/mrpc-tinybert4.json: missing; stage evaluate")
    assert "dvc repro evaluate@mrpc-tinybert4" in evaluation


def test_a_metrics_file_without_a_score_is_named(tree, params):
    write_json(tree / "metrics/evaluate/mrpc-tinybert4.json", {"split": "dev", "teacher": {}})
    with pytest.raises(UserError, match=r"evaluate/mrpc-tinybert4\.json: has no teacher\.accuracy"):
        build_report(params, tree)


def test_files_that_dvc_need_not_restore_may_be_missing(tree, params):
    for folder in ("reports/answers", "reports/curves", "reports/latency", "reports/timings", "data/augmented"):
        shutil.rmtree(tree / folder)
    build_report(params, tree)
    html = page(tree)
    assert html.count("<svg") == 4 and "Some answers" not in html  # of two tasks score over size and over sparsity
    assert ["prepare_teacher", "", "–", "–"] in Outline(html).rows


def test_untrained_students_that_differ_are_told_apart(tree, params):
    path = tree / "metrics/evaluate_domain/attentive.json"
    path.write_text(path.read_text().replace("4012.5", "3999.5"))
    build_report(params, tree)
    rows = Outline(page(tree)).rows
    assert [row[:3] for row in rows if row and row[0].startswith("untrained") and len(row) == 8] == [
        ["untrained lazy", "345,678", "4,012.50"],
        ["untrained attentive", "345,678", "3,999.50"],
    ]


def test_seeds_are_shown_with_mean_and_spread(params, tree):
    seeded = params.model_copy(update={"glue": params.glue.model_copy(update={"further_seeds": (43, 44)})})
    for task in ("mrpc", "mnli"):
        for seed, accuracy in {43: 0.70, 44: 0.75}.items():
            run = {"student": {"accuracy": accuracy}, "collapsed": seed == 43}
            write_json(tree / f"metrics/repeat_task_distill/{task}-tinybert4-{seed}.json", run)
    build_report(seeded, tree)
    # .7321, .70, .75: mean .7274, sample deviation sqrt((.0047² + .0274² + .0226²) / 2) = .0253
    row = "| mrpc | tinybert4 | accuracy | 0.732 0.700 0.750 | 0.727 ± 0.025 | 1 collapsed |"
    assert row in (tree / "reports/summary.md").read_text()
    assert "0.727 ± 0.025" in (tree / "reports/index.html").read_text()


def test_a_single_seed_has_no_table_of_seeds(made):
    assert "over seeds" not in (made[0] / "reports/summary.md").read_text()
