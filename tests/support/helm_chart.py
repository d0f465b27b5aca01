"""The chart in deploy/helm, as Helm itself renders it with the values in the chart's README."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from tests.support.manifests import Manifests

FOLDER: Final = Path(__file__).parents[2] / "deploy/helm"
RELEASE: Final = "stomp"
NAMESPACE: Final = "shop"
FULL_NAME: Final = "stomp-stomp-gateway"


class Chart:
    """The chart, and a Helm to render it."""

    def __init__(self, program: str) -> None:
        self._program = program

    @staticmethod
    def examples(heading: str) -> list[str]:
        """What README.md has in YAML below a heading."""
        section = (FOLDER / "README.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        return re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)

    @lru_cache  # noqa: B019 - as long as the tests, which have one
    def render(self, *values: str, chart: Path = FOLDER) -> Manifests:
        """The objects of a release with these values, each a text in YAML. Nobody may change them."""
        done = self._template(values, chart)
        assert done.returncode == 0, done.stderr
        return Manifests.read(done.stdout)

    def refusal(self, *values: str) -> str:
        """Why Helm renders nothing with these values."""
        done = self._template(values, FOLDER)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def render_sidecar(self, folder: Path) -> Manifests:
        """The objects of a chart of RabbitMQ's, written into a folder, that uses this one as README.md says."""
        dependency, values, template = self.examples("Sidecar")
        (folder / "templates").mkdir(parents=True)
        (folder / "Chart.yaml").write_text(f"apiVersion: v2\nname: broker\nversion: 1.0.0\n{dependency}")
        (folder / "values.yaml").write_text(values)
        (folder / "templates/statefulset.yaml").write_text(template)
        shutil.copytree(FOLDER, folder / "charts/stomp-gateway")
        return self.render(chart=folder)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Any other command of Helm's."""
        with tempfile.TemporaryDirectory() as home:
            environment = {"HOME": home, "PATH": "/usr/bin:/bin"}
            command = [self._program, *arguments]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def _template(self, values: tuple[str, ...], chart: Path) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            options = []
            for number, text in enumerate(values):
                Path(folder, f"{number}.yaml").write_text(text)
                options += ["--values", f"{folder}/{number}.yaml"]
            return self.run("template", RELEASE, chart, "--namespace", NAMESPACE, *options)
