"""Configure Sphinx. Build with ``make docs``."""

from __future__ import annotations

import celery_reliable

project = "celery_reliable"
author = "The celery_reliable authors"
version = release = celery_reliable.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
default_role = "py:obj"  # docstrings name objects in single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures would be wider than the page
autodoc_preserve_defaults = True
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"celery_reliable {version}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d4ed8", "color-brand-content": "#1d4ed8"},
    "dark_css_variables": {"color-brand-primary": "#6ea8fe", "color-brand-content": "#6ea8fe"},
}
