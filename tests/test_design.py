"""docs/design.md names every file by the first sentence of its docstring: `python -m tests.test_design` writes it."""

import ast

from tests import ROOT

PAGE = ROOT / "docs" / "design.md"
ROOMS = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")
_START = "(A test holds these tables against the files.)\n"


def tables() -> str:
    return "".join(f"\n### {room}/\n\n| file | its sentence |\n|---|---|\n{''.join(rows(room))}" for room in ROOMS)


def rows(room: str) -> list[str]:
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if docstring:
            name = path.relative_to(ROOT / room).with_suffix("").as_posix()
            found.append(f"| `{name}` | {_cell(docstring)} |\n")
    return found


def _cell(docstring: str) -> str:
    return docstring.splitlines()[0].replace("|", "\\|")


def page() -> str:
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(_START)
    return head + _START + tables()


def test_design_page_names_every_file_by_its_own_sentence() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.test_design"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
