"""The page of all commands, from the command line itself."""

from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files
from typer.main import get_command

INTRODUCTION = """# All commands

Every command with its arguments and options, as `--help` shows them. The guides say what they are for.
"""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the page."""
    from cbsa.cli import app

    text = INTRODUCTION + "".join(_describe("cbsa", get_command(app)))
    files.append(File.generated(config, "commands.md", content=text))
    return files


def _describe(name: str, command: Any) -> Iterator[str]:
    """Markdown of a command, or of the commands of a group."""
    for word, inner in getattr(command, "commands", {}).items():
        yield from _describe(f"{name} {word}", inner)
    if hasattr(command, "commands"):
        return
    parameters = [p for p in command.params if not p.hidden and p.name != "help"]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    usage = " ".join([name, *(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)])
    yield f"\n## `{name}` {{ #{name.replace(' ', '-')} }}\n\n"
    yield f"```\n{usage} [OPTIONS]\n```\n\n{command.help}\n\n"
    if parameters:
        yield "| | | default |\n|---|---|---|\n"
    for p in parameters:
        names = [p.name.upper()] if p in arguments else [*p.opts, *p.secondary_opts]
        what = f"{p.help}{' *Required.*' if p.required else ''}{' Can be repeated.' if p.multiple else ''}"
        cells = (", ".join(f"`{n}`" for n in names), what, _default(p))
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value == "" or parameter.required:
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, list | tuple) else value}`"
