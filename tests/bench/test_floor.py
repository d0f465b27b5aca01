from tests.bench.environment import GATEWAY, LIMIT, PLUGIN, Cpu, Sample
from tests.bench.floor import AT_LEAST_ONCE, table


def test_the_least_cost_of_each_side_is_shown_and_divided_by_the_plugins() -> None:
    def samples(broker: float, gateway: float | None = None) -> list[Sample]:
        """The second one was disturbed."""
        return [Sample(1.0, 1_000_000, 1.0, Cpu(broker * times, gateway, 0.0, 0.0)) for times in (1, 3)]

    by_side = {PLUGIN: samples(40), LIMIT: samples(20), AT_LEAST_ONCE: samples(30), GATEWAY: samples(32, 4)}

    *_, line = table({"send": by_side})

    assert line == "| `send` | 40.0 | 20.0 | 30.0 | 32.0 | 4.0 | 0.50 | 0.75 | 0.90 | <= 1.06 |"
