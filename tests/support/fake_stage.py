"""A stage instance without DVC and MLflow, for tests that call a stage script's main."""

from types import SimpleNamespace


class FakeStage:
    """What stage scripts use of tinybert.stage.Stage; metrics and curve end up in `metrics`."""

    def __init__(self, name: str, items: dict[str, str], params: SimpleNamespace, digest: str = "same") -> None:
        self.name, self.items, self.params, self.digest = name, items, params, digest
        self.names = {"seed": str(params.seed)}
        self.metrics: dict = {}
        self.earlier_seconds = 0.0

    def fingerprint(self):
        return lambda: self.digest

    @property
    def instance(self):
        return "-".join(self.items.values())

    def provenance(self, entries, history=()):
        return [*history]

    def log_entry(self, entry):
        pass

    def write_metrics(self, metrics, part=""):
        self.metrics |= {part: metrics} if part else metrics

    def write_curve(self, entries):
        self.metrics["curve"] = entries
