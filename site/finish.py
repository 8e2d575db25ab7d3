"""What Sphinx does not write: the sitemap, llms.txt, robots.txt, the page for addresses that lead nowhere, where names break."""

import re
from html import escape
from pathlib import Path

GENERATED = {"genindex.html", "py-modindex.html", "search.html", "404.html"}
ALONE = {"explorer", "slides"}  # folders of pages that Sphinx does not write
LISTED = {  # the sections of llms.txt: their title and the pages that they hold
    "Use": r"(README|docs/howto/.*)\.html",
    "Reference": r"(reference/.*|equations|docs/mathematics|docs/what_serves_what|docs/errata)\.html",
    "Course": r"(learn|docs/course/[^/]*|notebooks/.*)\.html",
    "Reports": r"docs/reports/.*\.html",
}


def title(page: Path) -> str:
    """The heading of a page, as plain text."""
    found = re.search(r"<h1>(.*?)<a class=\"headerlink\"", page.read_text(), flags=re.S)
    return re.sub(r"<[^>]+>", "", found[1]).strip() if found else page.stem


def summary(home: str) -> str:
    """The first paragraph of the home page, as plain text."""
    found = re.search(r"</h1>\s*<p>(.*?)</p>", home, flags=re.S)
    if found is None:
        raise ValueError("the home page does not begin with a paragraph")
    return " ".join(re.sub(r"<[^>]+>", "", found[1]).split())


def breakable(page: str) -> str:
    """The page with names of the package, which are long words, that may be broken at a dot, an underscore or a capital letter."""
    name = r'(?<=<span class="pre">)[\w.]{12,}(?=</span>)'
    return re.sub(name, lambda found: re.sub(r"(?<=[._])(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", found[0]), page)


def finish(out: Path, url: str) -> None:
    """Write them into the built site, whose published address is ``url``, with a slash at its end."""
    pages = [
        path for path in sorted(out.rglob("*.html")) if path.name not in GENERATED and path.parent.name not in ALONE
    ]
    names = {path.relative_to(out).as_posix(): title(path) for path in pages}
    entries = "".join(f"<url><loc>{escape(url + name)}</loc></url>\n" for name in names)
    (out / "sitemap.xml").write_text(
        f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    )
    (out / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {url}sitemap.xml\n")
    lines = ["# probtx_pyro", "", f"> {summary((out / 'index.html').read_text())}"]
    for section, pattern in LISTED.items():
        found = [f"- [{name}]({url}{path})" for path, name in names.items() if re.fullmatch(pattern, path)]
        lines += ["", f"## {section}", "", *found]
    (out / "llms.txt").write_text("\n".join(lines) + "\n")
    # Served at any depth, so its links begin with the site's address.
    (out / "404.html").write_text((Path(__file__).parent / "404.html").read_text().replace("SITE_URL/", url))
    (out / ".nojekyll").touch()
    for page in out.rglob("*.html"):
        if page.parent.name not in ALONE:
            page.write_text(breakable(page.read_text()))
