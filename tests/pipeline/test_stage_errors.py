"""What people see when something is wrong: one line, exit code 1, nothing half-written."""

from types import SimpleNamespace

import pytest

from stages import check_params as check_params_stage
from stages import filter_corpus
from stages.package import package_task_model
from tests.support.fake_stage import FakeStage
from tests.support.project import copy_project, default_tree, run, set_key, tiny_params, write_params
from tests.support.root import ROOT
from tinybert.config.load import check_params
from tinybert.config.tasks import TASKS
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import printable, read_jsonl, write_json, write_jsonl
from tinybert.stage import check_items


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return copy_project(tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (
            "corpus.unt",
            "article",
            "prepare_corpus: params.yaml: corpus.unt: unknown key; fix: check its spelling, or remove it",
        ),
        ("corpus.max_documents", 1, "prepare_corpus: corpus.heldout_every: 10, but the corpus has 1 documents"),
    ],
)
def test_one_line_exit_code_1_and_no_output(project, path, value, line):
    write_params(project, set_key(tiny_params(), path, value))
    found = run(project, "stages.prepare_corpus")
    assert found.returncode == 1
    assert len(found.stderr.strip().splitlines()) == 1, found.stderr
    assert found.stderr.startswith(line)
    assert not (project / "data").exists() or not list((project / "data").rglob("*.*"))
    assert not (project / "reports/metrics").exists()


def test_a_filter_that_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(paths.corpus("general", "train"), [{"title": "", "text": "no such term"}])
    params = check_params(default_tree({"filter.subjects": {"physics": ["quark"]}}))
    with pytest.raises(UserError, match=r"^train documents: filter: none of 1 documents is kept"):
        filter_corpus.main(FakeStage("filter_corpus", {}, params))
    assert not paths.corpus("domain", "train").parent.exists()


def test_a_domain_that_no_model_reads_may_match_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "heldout"):
        write_jsonl(paths.corpus("general", split), [{"title": "", "text": text} for text in ("first", "last")])
    stage = FakeStage("filter_corpus", {}, check_params(default_tree({"domain.students": []})))
    filter_corpus.main(stage)
    assert [row["text"] for row in read_jsonl(paths.corpus("domain", "train"))] == ["last"]
    assert stage.metrics["train"]["documents"] == {"found": 2, "kept": 0, "kept_share": 0.0}


def test_tables_are_checked_first_and_all_mistakes_are_listed(project, monkeypatch):
    monkeypatch.chdir(project)
    (project / "own.csv").write_text("text;label\n" + "a row;x\n" * 20)
    own = {"train": "own.csv", "dev": "absent.tsv", "texts": ["text"], "label": "label"}
    tree = tiny_params()
    tree["tasks"]["mine"] = tree["tasks"]["cola"] | {"data": own}
    tree["tasks"]["run"] = ["mine"]
    write_params(project, tree)
    with pytest.raises(SystemExit) as ended:
        check_params_stage.main()
    assert ended.value.code.splitlines() == [
        "tasks.mine.data.train: own.csv: no column 'text'; allowed: text;label; fix: separate fields by commas in "
        ".csv, by tabs in .tsv",
        "tasks.mine.data.dev: absent.tsv does not exist; fix: correct the path",
    ]
    del own["dev"]
    write_params(project, tree)
    (project / "own.csv").write_text("text,label\n" + "".join(f"row {n},x\n" for n in range(20)) + "row,y\n")
    line = "tasks.mine.data.dev_fraction: class 'y' of mine has at most one text of its own"
    with pytest.raises(SystemExit, match=f"^{line}"):
        check_params_stage.main()
    found = run(project, "stages.prepare_task", "--task", "mine")
    assert found.returncode == 1 and found.stderr.startswith(f"prepare_task@mine: {line}")
    assert not (project / "data/tasks/mine").exists()


def test_ctrl_c_is_one_line_and_leaves_nothing(project):
    script = project / "stages/prepare_corpus.py"
    whole = script.read_text()
    script.write_text(whole.replace("    found =", "    raise KeyboardInterrupt\n    found ="))
    write_params(project, tiny_params())
    try:
        found = run(project, "stages.prepare_corpus")
    finally:
        script.write_text(whole)
    assert (found.returncode, found.stderr) == (130, "prepare_corpus: interrupted; run the command again to resume\n")


def test_control_characters_of_data_do_not_reach_the_terminal():
    assert printable("λ of a\x1b[2J\x00\r é") == r"λ of a\x1b[2J\x00\r é"


def test_mlflows_page_is_for_this_machine_only():
    recipe = (ROOT / "Makefile").read_text().split("\nui: ")[1].split("\n\n")[0]
    assert "--host 127.0.0.1 " in recipe and recipe.count("--host") == 1


def test_an_item_that_params_do_not_list():
    with pytest.raises(UserError, match=r"^--task: not in params\.yaml \(got colla\); allowed: cola$"):
        check_items({"task": "colla"}, check_params(tiny_params()))


def test_bad_names_reach_neither_shell_nor_paths(project):
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    tree, names = tiny_params(), ["$(touch pwned)", "../../docs", "../../../elsewhere"]
    tree["students"] |= dict.fromkeys(names, tree["students"]["lazy"])
    tree["general"]["students"] = names
    write_params(project, tree)
    found = run(project, "dvc", "repro")
    assert found.returncode != 0
    lines = [line for line in found.stderr.splitlines() if "must be lower-case letters, digits and _" in line]
    assert all(any(f"students.{name}: " in line for line in lines) for name in names), found.stderr
    assert (project / "docs/log.md").is_file() and elsewhere.is_dir()
    assert not (project / "pwned").exists() and not (project / "models").exists()


def test_commands_quote_what_comes_from_params(tmp_path):
    """Also if only one stage runs, without the check of params."""
    project, tree = copy_project(tmp_path), tiny_params()
    tree["students"]["lazy; touch pwned"] = tree["students"]["lazy"]
    tree["general"]["students"] = ["lazy; touch pwned"]
    write_params(project, tree)
    for needed in ("data/tokenizer", "data/sequences/general", "models/teacher"):
        (project / needed).mkdir(parents=True, exist_ok=True)
    for needed in ("data/params_checked", "data/code/general_distill"):
        (project / needed).parent.mkdir(parents=True, exist_ok=True)
        (project / needed).write_text("")
    found = run(project, "dvc", "repro", "--single-item", "general_distill")
    assert "python -m stages.general_distill --student 'lazy; touch pwned'" in found.stdout
    assert found.returncode != 0 and not (project / "pwned").exists()


def test_a_model_without_a_passing_int8_file_is_not_packaged(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    scores = {"fp32": 0.8, "int8-dynamic": 0.7, "int8-qdq": 0.71, "int8-qoperator": 0.72}
    variants = {name: {"dev": {"matthews": score}, "size_mb": {"raw": 1.0}} for name, score in scores.items()}
    for name, metrics in (("prepare_task/cola", {}), ("finetune_teacher/cola", {}), ("quantize/cola-tiny", variants)):
        write_json(paths.metrics(*name.split("/")), metrics)
    params = SimpleNamespace(seed=1, quantization=SimpleNamespace(max_score_drop=0.05))
    with pytest.raises(UserError) as caught:
        package_task_model(TASKS["cola"], "tiny", params)
    assert str(caught.value).startswith(
        "quantization.max_score_drop: cola/tiny: every INT8 variant loses more matthews (got int8-dynamic 0.1000, int8"
    )
    assert not paths.final("cola", "tiny").exists()
