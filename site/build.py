"""Build the site: stage the pages that the repository has, write those that are generated, call Sphinx.

``python site/build.py`` writes ``site/_build``; warnings are errors. The sources stay where they are: ``docs/``, ``notebooks/``,
``README.md`` and the docstrings. They are staged under ``site/.work/source`` in the folders they have in the repository, so that
their links lead to each other. In the environment, ``SITE_URL`` is the address of the published site (sitemap, social card, 404) and
``REPOSITORY`` that of the repository, which the home page says how to clone.
"""

import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import deck
import equations
import finish
import formulas
import gallery
import graph
import lessons
import reference
from sphinx.cmd.build import main as sphinx

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
URL = os.environ.get("SITE_URL", "http://localhost:8000/")
REPOSITORY = os.environ.get("REPOSITORY", "")
WORK, OUT = SITE / ".work", SITE / "_build"
SOURCE, PICTURES = WORK / "source", WORK / "pictures"
EXPLORER = SITE / "explorer/index.html"
INDEX = {
    None: "index.md",
    "#how-to": "use.md",
    "#the-course": "learn.md",
    "#reports": "reports.md",
}  # docs/index.md's sections
NUMBERS = [
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
]
LISTS = {"docs/course/glossary.md", "docs/what_serves_what.md"}  # pages whose tables are lists on a phone


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level, without the heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    if found is None:
        raise ValueError(f"docs/index.md or README.md has no section {title!r}")
    return found[1].strip()


def stage() -> dict[str, str]:
    """Text of every page by its path, with links that lead to pages of the site."""
    pages = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for pattern in ("docs/**/*.md", "notebooks/*.ipynb", "*.md")
        for path in sorted(ROOT.glob(pattern))
    }
    index, readme = pages.pop("docs/index.md"), pages["README.md"]
    moved = re.sub(r"\]\((howto|course|reports)/", r"](docs/\1/", index)
    howto, reports = section(moved, "How to"), section(moved, "Reports")
    blocks = {
        "HOWTO": as_lists(howto, pages),
        "HOWTOS": "\n".join(re.findall(r"\((docs/howto/\w+)\.md\)", howto)),
        "REPORTS": reports,
        "REPORTED": re.sub(
            r"\[(.*?)\]\((.*?)\)", r"\1 <\2>", "\n".join(re.findall(r"^\| (\[.*?\)) \|", reports, flags=re.M))
        ),
        "COURSE": section(moved, "The course"),
        "NOTEBOOKS": re.sub(
            r"^\| \[(\d+)\](\(.*?\)) \| (.*) \|$", r"| \1 | [\3]\2 |", section(readme, "The course"), flags=re.M
        ),
        "CLONE": clone(),
        "COUNT": NUMBERS[len(views())],
        "PICTURE": picture(),
        "EXPLORER": explorer(),
    }
    for path in sorted((SITE / "pages").glob("*.md")):
        pages[path.name] = re.sub(r"<!-- ([A-Z]+) -->", lambda found: blocks[found[1]], path.read_text())
    for path, text in pages.items():
        text = re.sub(
            r"^(```python\n.*?)\n+^```$", r"\1\n```", text, flags=re.M | re.S
        )  # a doctest ends with an empty line
        text = _on_the_site(text, "../" * path.count("/"))
        pages[path] = re.sub(r"^```mermaid\n(.*?)^```$", partial(_drawn, text), text, flags=re.M | re.S)
    for path in LISTS:
        pages[path] = re.sub(r"(?:^\|.*\n)+", r"::::{div} lists\n\g<0>::::\n", pages[path], flags=re.M)
    titles = views()
    for path, text in pages.items():
        name = Path(path).stem
        if path.startswith("notebooks/"):
            pages[path] = lessons.lesson(name, text, titles, REPOSITORY)
        elif path.startswith("docs/howto/"):
            pages[path] = gallery.shown(name, text, PICTURES)
    names = reference.pages()
    pages |= names
    pages["equations.md"] = _on_the_site(
        equations.page(readme, pages["docs/mathematics.md"], ROOT / "tests", names), ""
    )
    return pages


def _on_the_site(text: str, up: str) -> str:
    """The text of a page with links that name the page they lead to, and docs/index.md's, which is no page, to those of its sections."""
    link = r"\]\((?:\.\./)*(?:docs/)?index\.md(#[\w-]+)?\)"
    text = re.sub(link, lambda found: f"]({up}{INDEX[found[1]]})", text)
    return re.sub(r"(?<!!)\[[\w./]+\.md\](\([\w./]+\.md\))", r"[]\1", text)


def as_lists(text: str, pages: dict[str, str]) -> str:
    """Paragraphs of a topic and its links as sections, each with a tile for every page that ends in a picture, and a list."""

    def listed(found: re.Match) -> str:
        links = re.findall(r"\[(.*?)\]\((.*?)\.md\)", found[2])
        tiles = [tile(title, page, pages[f"{page}.md"]) for title, page in links]
        grid = ["::::{grid} 2 2 3 4", ":gutter: 2", "", *filter(None, tiles), "::::", ""] if any(tiles) else []
        return "\n".join([f"## {found[1]}", "", *grid, *(f"- [{capital(title)}]({page}.md)" for title, page in links)])

    return re.sub(r"^([A-Z][^:\n]*):\n(\[.*?)(?=\n\n|\Z)", listed, text, flags=re.M | re.S)


def capital(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return text[0].upper() + text[1:]


def tile(title: str, page: str, text: str) -> str | None:
    """A card with the picture of a how-to page, where it has one."""
    alt = gallery.described(text)
    picture = f"docs/howto/pictures/{Path(page).name}.png"
    head = f":::{{grid-item-card}} {capital(title)}\n:img-top: {picture}\n:img-alt: {alt}\n:link: {page}\n:link-type: doc\n:::\n"
    return head if alt else None


def clone() -> str:
    """How a reader gets the repository, where the environment says its address."""
    name = REPOSITORY.rstrip("/").rpartition("/")[2]
    return (
        f"```\ngit clone {REPOSITORY}\ncd {name}\n```\n\nThen, there:"
        if REPOSITORY
        else "In the folder of the repository:"
    )


def _drawn(page: str, found: re.Match) -> str:
    """A graph whose node n00 leads where the page's [00] does."""
    links = {f"n{name}": f"{to}.html" for name, to in re.findall(r"^\[(\d+)\]: (\S+)\.ipynb$", page, flags=re.M)}
    return graph.svg(found[1], links)


def explorer() -> str:
    """The explorer in a frame, and below it each view in words, for the search; or a line that says where it will be."""
    if not EXPLORER.exists():
        return "The explorer is not part of this build."
    text = (
        '<iframe class="explorer whole" src="explorer/index.html" title="The explorer"></iframe>\n\n'
        'It is one file that works by itself: <a href="explorer/index.html">open it alone</a>, or save it. The address of this page keeps what you '
        "moved: copy it to show somebody the same."
    )
    titles = views()
    if unknown := titles.keys() - lessons.SHOWS.keys():
        raise ValueError(f"say in site/lessons.py what these views show: {', '.join(sorted(unknown))}")
    for view in filter(titles.__contains__, lessons.SHOWS):
        where = ", ".join(f"[{name[:2]}](notebooks/{name}.ipynb)" for name in lessons.places(view))
        stands = f" It stands in notebook {where}." if where else ""
        alone = lessons.PAGES.get(view)
        opened = (
            f'<a href="explorer/{alone}">Open it.</a>'
            if alone
            else f'<a href="#{view}" data-view="{view}">Open it above.</a>'
        )
        text += f"\n\n## {titles[view]}\n\n{lessons.SHOWS[view]}{stands} {opened}"
    return text


def picture() -> str:
    """The picture of the home page: the explorer's first view, or the README's figure where there is no explorer."""
    if EXPLORER.exists():
        return '<iframe class="explorer" src="explorer/index.html?picture" title="The explorer: attention is a posterior"></iframe>'
    found = re.search(r"^!\[.*?\]\(.*?\)\n\n\*.*?\*$", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    if found is None:
        raise ValueError("README.md has no figure with a caption")
    return found[0]


def views() -> dict[str, str]:
    """Titles of the explorer's views by their identifiers, as their files say."""
    if not EXPLORER.exists():
        return {}
    found = {}
    source = SITE / "explorer/src"
    for path in sorted([*source.glob("views/*.js"), *source.glob("pages/*.js")]):
        text = path.read_text().partition("export default")[2]
        fields = [re.search(rf'\b{name}: "(.*?)"', text) for name in ("id", "title")]
        if not all(fields):
            raise ValueError(f"{path.name} does not say its id and title")
        found[fields[0][1]] = fields[1][1]
    return found


def copy_explorer() -> None:
    """Copy the explorer, which finds the notebooks beside it."""
    (OUT / "explorer").mkdir()
    inside, beside = (
        'data-notebooks="../../notebooks/" data-suffix=".ipynb"',
        'data-notebooks="../notebooks/" data-suffix=".html"',
    )
    page, weights = (lessons.script_of(EXPLORER.parent / f"{name}.py") for name in ("build", "weights"))
    texts = {"index.html": EXPLORER.read_text()}
    texts |= {name: page.page(Path(name).stem) for name in lessons.PAGES.values()}
    for name, text in texts.items():
        if inside not in text:
            raise ValueError(f"{name} of the explorer does not say where the notebooks are: {inside}")
        (OUT / "explorer" / name).write_text(text.replace(inside, beside, 1))
    (OUT / "explorer/weights.js").write_text(weights.script())


def files(pages: dict[str, str]) -> set[str]:
    """Pictures and other files of the repository that pages show or link to; a reader can download the latter."""
    found = set()
    for path, text in pages.items():
        for link in re.findall(r"\]\(([^):#\s]+)\)", text) if path.endswith(".md") else ():
            target = os.path.normpath(os.path.join(os.path.dirname(path), link))
            if target not in pages and (ROOT / target).is_file():
                found.add(target)
    return found


def write(pages: dict[str, str]) -> None:
    """Write the staged pages that changed and the files they show, and remove what is gone."""
    linked = files(pages)
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.relative_to(SOURCE).as_posix() not in {*pages, *linked}:
            path.unlink()
    for path in {*pages, *linked}:
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        if not (SOURCE / path).exists() or (SOURCE / path).read_text() != text:
            (SOURCE / path).write_text(text)
    for path in linked:
        shutil.copy2(ROOT / path, SOURCE / path)
    (SOURCE / "docs/howto/pictures").mkdir(exist_ok=True)
    for path in PICTURES.glob("*.png"):
        shutil.copy2(path, SOURCE / "docs/howto/pictures")


def main(arguments: list[str]) -> int:
    """Stage, call Sphinx and add what it does not make; the exit status is Sphinx's.

    Nothing is kept from the build before: a page that Sphinx remembers from a build that failed gives no warning again.
    """
    for name in ("html", "doctrees", "jupyter_execute", "pictures"):
        shutil.rmtree(WORK / name, ignore_errors=True)
    write(stage())
    options = "-b html -W --keep-going -n -q -j auto".split()
    status = sphinx(
        [*options, "-d", str(WORK / "doctrees"), "-c", str(SITE), *arguments, str(SOURCE), str(WORK / "html")]
    )
    if status == 0:
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.copytree(WORK / "html", OUT, ignore=shutil.ignore_patterns(".buildinfo"))
        if EXPLORER.exists():
            copy_explorer()
        deck.write(OUT)
        formulas.write(OUT)
        finish.finish(OUT, URL)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
