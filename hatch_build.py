"""Put the course's notebooks into the wheel, without their outputs: `probtx tour` runs them."""

import json
from pathlib import Path
from tempfile import mkdtemp

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Notebooks(BuildHookInterface):
    """Adds probtx_pyro/tour/notebooks."""

    def initialize(self, version, build_data):
        """Add what an editable install finds in the repository."""
        if version == "editable":
            return
        folder = Path(mkdtemp())
        for path in sorted(Path(self.root, "notebooks").glob("*.ipynb")):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell |= {"outputs": [], "execution_count": None}
            (folder / path.name).write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
        build_data["force_include"][str(folder)] = "probtx_pyro/tour/notebooks"
