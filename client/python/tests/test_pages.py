"""The code of docs/src/python.md runs as it stands, cell by cell."""

import contextlib
import importlib.util
import os
import re
import unittest
from pathlib import Path

from cluster import ClusterTest

PAGE = Path(__file__).parents[3] / "docs/src/python.md"


class Pages(ClusterTest):
    def test_each_cell_runs(self):
        os.environ["MPLBACKEND"] = "Agg"
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder.name)
        cells = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        self.assertGreater(len(cells), 5)
        can_plot = importlib.util.find_spec("matplotlib") is not None
        names = {"__name__": "__main__"}
        for number, cell in enumerate(cells):
            if not can_plot and ("plt." in cell or "places." in cell):
                print("SKIPPED: no matplotlib here")
                continue
            with self.subTest(cell=cell), contextlib.redirect_stdout(None):
                exec(compile(cell, f"{PAGE.name}, cell {number}", "exec"), names)
        if can_plot:
            self.assertGreater(os.path.getsize("keys.png"), 10_000)


if __name__ == "__main__":
    unittest.main()
