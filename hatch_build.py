"""Put the course's notebooks into wheel and sdist, without their outputs: `probtx tour` runs them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Notebooks(BuildHookInterface):
    """Adds a folder of notebooks to what is built."""

    def initialize(self, version, build_data):
        """Add what an editable install finds in the repository."""
        if version == "editable":
            return
        self.folder = TemporaryDirectory()
        for path in sorted(Path(self.root, "notebooks").glob("*.ipynb")):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell |= {"outputs": [], "execution_count": None}
            Path(self.folder.name, path.name).write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
        places = {"sdist": "notebooks", "wheel": "probtx_pyro/tour/notebooks"}
        build_data["force_include"][self.folder.name] = places[self.target_name]

    def finalize(self, version, build_data, artifact_path):
        """Remove the copies."""
        if version != "editable":
            self.folder.cleanup()
