"""What the site has beyond docs/: the changelog of the repository, and names of files above their blocks."""

import re
from pathlib import Path

from mkdocs.structure.files import File

FILE = re.compile(r"^<!-- file: (\S+) -->\n(`{3,}\w+)$", re.M)  # see run_blocks.py


def on_files(files, config):
    source = Path(config.config_file_path).with_name("CHANGELOG.md")
    files.append(File.generated(config, "changelog.md", abs_src_path=str(source)))
    return files


def on_page_markdown(markdown, **_):
    return FILE.sub(r'\2 title="\1"', markdown)
