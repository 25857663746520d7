"""Layer maps as pictures and numbers."""

from xml.etree import ElementTree

import pytest

from tests.support.report_tree import small_tree, write_tree
from tinybert.config.load import check_params
from tinybert.config.students import MAPPED_LOSSES
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import BertConfig
from tinybert.pipeline.files import read_json, write_json
from tinybert.report.layer_maps import LayerMap, layer_map_charts, layer_map_table, layer_maps, layers_read
from tinybert.report.results import load_results


@pytest.fixture
def root(tmp_path):
    write_tree(tmp_path)
    return tmp_path


def maps_of(root, student: str, **recipe) -> list[LayerMap]:
    tree = small_tree()
    tree["students"][student] |= recipe
    return [found for found in layer_maps(load_results(check_params(tree), root)) if found.student == student]


def test_stages_that_read_one_map_share_a_picture(root):
    [found] = maps_of(root, "little_professor")
    assert (found.stages, found.kind) == ("general; domain", "uniform")
    assert found.edges == ((0, 0, 1.0), (1, 2, 1.0), (2, 4, 1.0))  # 2 layers of 4, and the embedding output


def test_a_stage_without_a_loss_of_mapped_layers_has_no_map(root):
    assert maps_of(root, "lazy") == []  # hard and prediction only


def test_a_phase_that_trained_nothing_has_no_map(root):
    [found] = maps_of(root, "tinybert4")  # intermediate: 0 steps; prediction reads logits
    assert found.stages == "general"
    for task in ("mrpc", "mnli"):
        write_json(
            root / f"reports/metrics/task_distill_intermediate/{task}-tinybert4.json",
            {"steps": 9, "loss": {"total": 1}},
        )
    [found] = maps_of(root, "tinybert4")
    assert found.stages == "general; intermediate: mrpc, mnli"


def test_blocks_are_weighed_equally_or_as_learnt(root):
    [mean] = maps_of(root, "attentive", layer_map="mean")
    assert mean.edges == ((1, 1, 0.5), (1, 2, 0.5), (2, 3, 0.5), (2, 4, 0.5))
    path = root / "reports/metrics/general_distill/attentive.json"
    learnt = {"map_1_1": 0.25, "map_1_2": 0.75, "map_2_3": 0.9, "map_2_4": 0.1}
    write_json(path, read_json(path) | {"layer_map": learnt})
    general, domain = maps_of(root, "attentive", layer_map={"learnable": {"learning_rate": 1e-3, "init": "equal"}})
    assert (general.stages, general.kind) == ("general", "learnable")
    assert general.edges == ((1, 1, 0.25), (1, 2, 0.75), (2, 3, 0.9), (2, 4, 0.1))
    assert domain.stages == "domain" and domain.edges == mean.edges


@pytest.mark.parametrize("loss", sorted(MAPPED_LOSSES))
def test_the_layers_drawn_are_those_that_the_objective_reads(loss):
    shape = dict(vocab_size=9, hidden_size=8, num_attention_heads=2, intermediate_size=8, max_position_embeddings=8)
    student, teacher = BertConfig(num_hidden_layers=3, **shape), BertConfig(num_hidden_layers=6, **shape)
    wants = DistillationLoss(DistillationConfig({loss: 1.0}, relation_heads=2), student, teacher).student_spec
    assert layers_read({loss}, 3) == wants.hidden | wants.scores | wants.qkv


def test_the_picture_joins_the_layers_and_its_lines_grow_with_their_weights():
    [chart] = layer_map_charts([LayerMap("tinybert4", "general", "learnable", 1, 2, ((1, 1, 0.2), (1, 2, 0.8)))])
    drawing = ElementTree.fromstring(chart.svg)
    light, heavy = drawing.findall("line")
    assert float(heavy.get("stroke-width")) > 2 * float(light.get("stroke-width"))
    middles = {float(box.get("y")) + 8: box.get("x") for box in drawing.findall("rect")}
    assert {float(line.get(end)) for line in (light, heavy) for end in ("y1", "y2")} <= middles.keys()
    assert float(heavy.get("y1")) < float(light.get("y1"))  # the top layer above
    assert light.get("y2") == heavy.get("y2")
    assert "student 1 imitates teacher 2 with weight 0.80" in drawing.get("aria-label")


def test_only_layers_that_are_drawn_by_lot_have_broken_lines():
    [chart] = layer_map_charts([LayerMap("a", "general", "random", 1, 2, ((0, 0, 1.0), (1, 1, 0.5), (1, 2, 0.5)))])
    styles = [line.get("class") for line in ElementTree.fromstring(chart.svg).findall("line")]
    assert styles == ["map", "map drawn", "map drawn"]


def test_the_table_has_each_weight_and_pictures_and_table_escape_names():
    found = LayerMap("<b>", "general", "listed", 1, 2, ((0, 0, 1.0), (1, 2, 1.0)))
    assert layer_map_table([found]).rows == [
        ("<b>", "general", "listed", "embedding", "embedding", "1.000"),
        ("<b>", "general", "listed", "1", "2", "1.000"),
    ]
