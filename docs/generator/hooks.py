"""What MkDocs calls while it builds the site: tables from the code, and pages that live elsewhere in the repository."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.generator.reference import TABLES

ROOT = Path(__file__).resolve().parents[2]
MARKER = re.compile(r"<!-- generated: (\w+) -->")
ELSEWHERE = {"CHANGELOG.md": "changelog.md"} | {
    file.relative_to(ROOT).as_posix(): f"services/{file.parent.name}.md"
    for file in sorted(ROOT.glob("services/*/README.md"))
}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: a README for each environment service, and the changes."""
    for source, page in ELSEWHERE.items():
        text = _relink((ROOT / source).read_text(encoding="utf-8"), ROOT / source, page)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill the markers of a page, and turn its links to files outside docs/ into links to their pages."""
    if page.file.src_uri not in ELSEWHERE.values():
        source = Path(config.docs_dir) / page.file.src_uri
        markdown = _relink(markdown, source, page.file.src_uri)
    return MARKER.sub(lambda found: TABLES[found[1]](), markdown)


def _relink(text: str, source: Path, page: str) -> str:
    """Links of a file, as the page that it becomes must write them; links to what is no page stay as they are."""

    def target(found: re.Match[str]) -> str:
        file = (source.parent / found[1]).resolve()
        if not file.is_relative_to(ROOT):
            return found[1]
        name = file.relative_to(ROOT).as_posix()
        place = ELSEWHERE.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else None)
        return found[1] if place is None else "../" * page.count("/") + place

    return LINK.sub(target, text)
