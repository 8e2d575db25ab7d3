"""Sphinx's settings for the site; `build.py` stages the pages and calls Sphinx with them."""

import os
import re
import sys
from base64 import b64decode
from dataclasses import replace
from html import escape
from importlib.metadata import version
from pathlib import Path

import myst_nb.core.render
from docutils import nodes
from sphinx.search.en import SearchEnglish

sys.path.insert(0, str(Path(__file__).parent))
import docstrings

project = "probtx_pyro"
author = "The probtx_pyro authors"
copyright = "the probtx_pyro authors, Apache-2.0"
version = release = version("probtx_pyro")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
language = "en"
highlight_language = "none"
default_role = "py:obj"  # single backticks of a docstring name an object of the package

# -- Markdown and notebooks -------------------------------------------------------------------------------------------------
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 5
myst_update_mathjax = False  # formulas.py sets formulas
nb_execution_mode = "off"  # `make notebooks` executes; the site shows what was committed
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Code", "Code"
nb_render_markdown_format = "myst"
nb_mime_priority_overrides = [("html", "image/png", 5)]

# -- reference --------------------------------------------------------------------------------------------------------------
nitpicky = True
# No inventory of another project is fetched (the build is offline), so names of other packages are text, not links.
_OTHERS = "torch|Tensor|ProcessGroup|os|functools|pyro|numpy|np|arviz|az|xarray|xr|matplotlib|mpl|pathlib|collections|typing|jaxtyping|PIL|sklearn|lightning|starlette|argparse|scipy"
_PLAIN = (
    "bool|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str|tuple|type|None|Any|Callable|optional"
)
nitpick_ignore_regex = [
    (r"py:.*", rf"({_OTHERS})(\..*)?"),
    (r"py:.*", rf"({_PLAIN})"),
]
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_display_short_literal_types = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
numpydoc_show_class_members = False
add_module_names = False
toc_object_entries_show_parents = "hide"

# -- HTML -------------------------------------------------------------------------------------------------------------------
html_theme = "furo"
html_title = "probtx_pyro"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css", "formulas.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("site.js", "predictions.js")]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = True  # but from file://, where no browser fetches one: site.js
html_baseurl = os.environ.get("SITE_URL", "http://localhost:8000/")
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#005b8f",
        "color-brand-content": "#005b8f",
        "color-brand-visited": "#6f3d86",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc4f0",
        "color-brand-content": "#7cc4f0",
        "color-brand-visited": "#d9a6c4",
    },
    "navigation_with_keys": False,
}


WIDE = 700  # pixels of a picture that a phone shows in a box that scrolls
SENTENCE = "Attention and transformers as Pyro programs: the attention matrix is a posterior."


def _described(render):
    """A picture of a notebook with the description that its output carries; see `probtx_pyro.course.show_figure`."""

    def render_image(self, data):
        alt = data.output_metadata.get(data.mime_type, {}).get("alt")
        if alt:
            options = data.cell_metadata.get("mystnb", {})
            image = {**options.get("image", {}), "alt": alt}
            if data.mime_type == "image/png" and int.from_bytes(b64decode(data.string[:44])[16:20]) > WIDE:
                image["classes"] = "wide"
            data = replace(data, cell_metadata={**data.cell_metadata, "mystnb": {**options, "image": image}})
        return render(self, data)

    return render_image


class Search(SearchEnglish):
    """English, with words such as k-means and R-hat whole: their letter alone would find every page."""

    _word_re = re.compile(r"\b[^\W_]-\w{2,}(?:-\w+)*|\w{2,}-[^\W_]\b|\w+")
    js_splitter_code = (
        r"var splitQuery = (query) => query.match(/(?<![\p{L}\p{N}_])[\p{L}\p{N}]-[\p{L}\p{N}_]{2,}(?:-[\p{L}\p{N}_]+)*|"
        r"[\p{L}\p{N}_]{2,}-[\p{L}\p{N}](?![\p{L}\p{N}_])|[\p{L}\p{N}_]+/gu) ?? [];"
    )


def _summary(doctree) -> str:
    """The first sentences of a page, as many as a search engine shows."""
    paragraphs = doctree.findall(nodes.paragraph) if doctree else ()
    plain = (
        " ".join(one.astext().split())
        for one in paragraphs
        if isinstance(one.parent, nodes.section | nodes.document) and not one.next_node(nodes.raw)
    )
    text = next((text for text in plain if len(text) > 40), SENTENCE)
    return text if len(text) <= 200 else f"{text[:200].rpartition(' ')[0]} …"


def _card(app, pagename, templatename, context, doctree):
    """What a search engine says of a page, what a link to it shows where it is shared, and the script that its frames need first."""
    context["has_maths_elements"] = False  # formulas.py sets them: no page needs MathJax
    title, address = escape(context.get("title", project)), escape(f"{html_baseurl}{pagename}.html")
    summary = escape(_summary(doctree))
    context["metatags"] = context.get("metatags", "") + (
        f'<meta name="description" content="{summary}">'
        f'<meta property="og:title" content="{title}"><meta property="og:type" content="website">'
        f'<meta property="og:site_name" content="probtx_pyro"><meta property="og:url" content="{address}">'
        f'<meta property="og:description" content="{summary}">'
        f'<meta property="og:image" content="{html_baseurl}_static/card.png">'
        '<meta property="og:image:alt" content="The attention of three units over a plane of queries">'
        '<meta name="twitter:card" content="summary_large_image">'
        f'<script src="{context["pathto"]("_static/frames.js", 1)}"></script>'
    )


def setup(app):
    """Register what is no extension of its own."""
    app.add_search_language(Search)
    app.connect("autodoc-process-docstring", docstrings.process, priority=400)
    app.connect("autodoc-process-signature", docstrings.signature)
    app.connect("html-page-context", _card, priority=400)  # before MathJax would come in
    app.connect("missing-reference", docstrings.resolve)
    renderer = myst_nb.core.render.NbElementRenderer
    renderer.render_image = _described(renderer.render_image)
