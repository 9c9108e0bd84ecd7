"""What the site needs beyond MkDocs: links that leave `docs/`, fences with a name, pictures for light and dark pages.

On disk, pages link to files of the repository by relative paths. On the site, each linked file becomes a page below
`repository/`, and README.md is the home page. A picture that follows `prefers-color-scheme` becomes two, because the
reader can choose other colours on the site than in the system.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, HOME, ELSEWHERE = "docs/", "README.md", "repository/"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
FENCE = re.compile(r"^(```\w+) (?:together|(\S+))$", re.MULTILINE)
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\.svg\)")
DARK = "@media (prefers-color-scheme: dark)"
SHADES = {"light": "@media not all", "dark": "@media all"}
ACCESSIBLE = {
    "<th></th>": "<td></td>",
    '<div class="md-search" data-md-component="search" role="dialog">': (
        '<div class="md-search" data-md-component="search" role="dialog" aria-label="Search">'
    ),
}
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, every file of the repository that a page links to, and the two shades of pictures."""
    for path in _reached([HOME, *(DOCS + file.src_uri for file in files.documentation_pages())]):
        if not path.startswith(DOCS):
            files.append(_file(path, config))
    for picture in [file for file in files if file.src_uri.endswith(".svg") and DARK in file.content_string]:
        for shade, rule in SHADES.items():
            content = picture.content_string.replace(DARK, rule)
            files.append(File.generated(config, _shade(picture.src_uri, shade), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to their places on the site, and give fences names that the highlighter understands."""
    origin = _origin(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        path = _resolve(origin, match[1])
        return match[0] if path is None else posixpath.relpath(_place(path), here or ".") + match[2]

    def shaded(match: re.Match[str]) -> str:
        if files.get_file_from_path(posixpath.normpath(posixpath.join(here, f"{match[2]}.light.svg"))) is None:
            return match[0]
        return "".join(f"![{match[1]}]({match[2]}.{shade}.svg#only-{shade})" for shade in SHADES)

    markdown = PICTURE.sub(shaded, LINK.sub(led, markdown))
    return FENCE.sub(lambda match: match[1] + (f' title="{match[2]}"' if match[2] else ""), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Mend what keeps pages of the theme from being used without a mouse or by a screen reader."""
    for before, after in ACCESSIBLE.items():
        output = output.replace(before, after)
    return output


def _reached(paths: list[str]) -> Iterator[str]:
    """These files, and all files and folders of the repository that they link to, directly or not."""
    seen = set(paths)
    while paths:
        path = paths.pop()
        yield path
        if path.endswith(".md"):
            linked = {_resolve(path, match[1]) for match in LINK.finditer((ROOT / path).read_text())}
            paths += sorted(new := {each for each in linked if each} - seen)
            seen |= new


def _resolve(origin: str, target: str) -> str | None:
    """The path in the repository that a link means; None if there is no such file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _place(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == HOME:
        return "index.md"
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if (ROOT / path).is_dir():
        return f"{ELSEWHERE}{path}/folder.md"
    return f"{ELSEWHERE}{path}" + ".md" * (Path(path).suffix in LANGUAGES or "." not in Path(path).name)


def _origin(src_uri: str) -> str:
    """The file of the repository that a page shows."""
    if src_uri == "index.md":
        return HOME
    path = src_uri.removeprefix(ELSEWHERE)
    return path if path != src_uri else DOCS + src_uri


def _file(path: str, config: MkDocsConfig) -> File:
    place, source = _place(path), ROOT / path
    if not place.endswith(".md"):
        return File.generated(config, place, abs_src_path=str(source))
    if source.suffix == ".md":
        return File.generated(config, place, content=source.read_text())
    text = _listing(source) if source.is_dir() else _code(source)
    return File.generated(config, place, content=f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{text}\n")


def _code(source: Path) -> str:
    text = source.read_text()
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{ticks}{LANGUAGES.get(source.suffix, 'text')}\n{text}\n{ticks}"


def _listing(folder: Path) -> str:
    """The sources in a folder, each with the first line of its docstring."""
    sources = (path for path in sorted(folder.rglob("*")) if path.suffix in LANGUAGES)
    found = ((path.relative_to(folder), re.match(r'"""(.*)', path.read_text())) for path in sources)
    rows = (f"| `{path}` | {first[1] if first else ''} |" for path, first in found)
    return "\n".join(["| file | |", "|---|---|", *rows])


def _shade(src_uri: str, shade: str) -> str:
    return f"{src_uri.removesuffix('.svg')}.{shade}.svg"
