"""What the site has beyond docs/: the changelog, which stands at the top of the repository. See mkdocs.yml."""

from pathlib import Path

from mkdocs.structure.files import File


def on_files(files, config):
    source = Path(config.config_file_path).with_name("CHANGELOG.md")
    files.append(File.generated(config, "changelog.md", abs_src_path=str(source)))
    return files
