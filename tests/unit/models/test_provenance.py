from types import SimpleNamespace

from tinybert.models.checkpoints import read_provenance, write_provenance
from tinybert.stage import Stage


def stage(name, values, **items):
    return SimpleNamespace(name=name, items=items, values=values)


def test_a_history_grows_by_an_entry_a_stage(tmp_path):
    first = Stage.provenance(
        stage("general_distill", {"seed": 1}, student="small"), [{"step": 5}, {"step": 7}], source=None
    )
    write_provenance(first, tmp_path)
    second = Stage.provenance(stage("prune", {"seed": 2}, student="small", sparsity="20"), [], source=tmp_path)
    assert second == [
        {"stage": "general_distill", "student": "small", "steps": 7, "params": {"seed": 1}},
        {"stage": "prune", "student": "small", "sparsity": "20", "steps": 0, "params": {"seed": 2}},
    ]
    assert read_provenance(tmp_path) == first


def test_what_is_about_speed_alone_is_left_out(tmp_path):
    """Else a larger store of kept answers would change the folder of every student, and all that depends on it."""
    (entry,) = Stage.provenance(stage("prune", {"tasks.teacher_cache_gb": 2.0, "seed": 1}), [], source=None)
    assert entry["params"] == {"seed": 1}


def test_a_folder_without_history_has_none_and_gets_no_file(tmp_path):
    write_provenance([], tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert read_provenance(tmp_path) == []
