"""The page: one self-contained HTML file with everything the project measured."""

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tinybert.report import background, tables
from tinybert.report.charts import COLOURS
from tinybert.report.compression import compression_table, latency_table, pruning_charts, pruning_table
from tinybert.report.curves import curve_groups, map_weight_groups
from tinybert.report.examples import answers_table, variations_table
from tinybert.report.fronts import front_charts, shape_legend
from tinybert.report.layer_maps import layer_map_charts, layer_map_table, layer_maps
from tinybert.report.recommendation import best_students_table, verdict
from tinybert.report.results import Results
from tinybert.report.table import FLAGS
from tinybert.report.versions import versions_table

TEMPLATE = "page.html.j2"  # it includes page.css
LONG_TABLE = 60  # rows; longer ones are folded


def render_page(results: Results) -> str:
    """The whole page as HTML; all data is escaped, nothing is loaded from elsewhere."""
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template(TEMPLATE).render(
        choice=best_students_table(results, with_latency=True),
        verdict=verdict(results),
        domain=[tables.domain_table(results), tables.quiz_table(results), tables.heldout_table(results)],
        answers=answers_table(results),
        tasks=[
            tables.task_table(results),
            *tables.seeds_tables(results),
            tables.task_metrics_table(results),
            tables.published_table(results),
        ],
        curves=curve_groups(results),
        stages=[background.timing_table(results), background.training_table(results)],
        seconds=background.timing_chart(results),
        params=json.dumps(results.params.model_dump(mode="json"), indent=2, ensure_ascii=False),
        versions=versions_table(results),
        flags=FLAGS,
        colours=COLOURS,
        long_table=LONG_TABLE,
        **_compression(results),
        **_layer_maps(results),
        **_data(results),
    )


def _compression(results: Results) -> dict:
    return {
        "fronts": front_charts(results),
        "shapes": shape_legend(),
        "onnx": compression_table(results, with_latency=True, with_intervals=True),
        "latency": latency_table(results),
        "sparsity": pruning_charts(results),
        "pruned": pruning_table(results),
    }


def _layer_maps(results: Results) -> dict:
    maps = layer_maps(results)
    return {
        "maps": layer_map_charts(maps),
        "map_table": layer_map_table(maps),
        "map_weights": map_weight_groups(results),
    }


def _data(results: Results) -> dict:
    return {
        "data": [
            background.corpus_table(results),
            background.filter_table(results),
            background.teacher_table(results),
            background.task_data_table(results),
        ],
        "variations": variations_table(results),
    }
