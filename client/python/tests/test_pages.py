"""The code of docs/src/python.md runs as it stands, cell by cell."""

import contextlib
import importlib.util
import io
import os
import re
import unittest
from pathlib import Path

from cluster import ClusterTest
from test_bytes import BytesTest

PAGE = (Path(__file__).parents[3] / "docs/src/python.md").read_text(encoding="utf-8")


def cells_of(page, language):
    """The cells of a language: `py` are those for which the quick start's cluster is not enough."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def go_to(test):
    """Runs the rest of a test in the folder of its cluster."""
    test.addCleanup(os.chdir, os.getcwd())
    os.chdir(test.folder.name)


class Pages(ClusterTest):
    def test_each_cell_runs(self):
        os.environ["MPLBACKEND"] = "Agg"
        go_to(self)
        cells = cells_of(PAGE, "python")
        self.assertGreater(len(cells), 5)
        can_plot = importlib.util.find_spec("matplotlib") is not None
        names = {"__name__": "__main__"}
        for number, cell in enumerate(cells):
            if not can_plot and ("plt." in cell or "places." in cell):
                print("SKIPPED: no matplotlib here")
                continue
            with self.subTest(cell=cell), contextlib.redirect_stdout(None):
                exec(compile(cell, f"python.md, cell {number}", "exec"), names)
        if can_plot:
            self.assertGreater(os.path.getsize("keys.png"), 10_000)


class PagesOfBytes(BytesTest):
    def test_each_cell_runs(self):
        go_to(self)
        [section] = re.findall(r"^## Keys of bytes\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
        cells = cells_of(section, "py")
        self.assertEqual(len(cells), 2)
        names, said = {"__name__": "__main__"}, io.StringIO()
        with contextlib.redirect_stdout(said):
            for number, cell in enumerate(cells):
                exec(compile(cell, f"python.md, keys of bytes, cell {number}", "exec"), names)
        names["names"].close()
        lines = said.getvalue().splitlines()
        self.assertEqual(lines[:2], ["user:4711 b'Grace'", "b'user:4711' b'Grace'"])
        self.assertEqual(lines[-1], "2 orders since yesterday")
        self.assertEqual(len(lines), 6)


if __name__ == "__main__":
    unittest.main()
