"""Lists as repositories show them; the site's Markdown wants items indented by four, and set off."""

import re
from typing import Any

ITEM = re.compile(r"([-*]|\d+\.) ")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Indent what belongs to an item of a list, and set lists off from the text before them."""
    lines: list[str] = []
    fenced = within = loose = False  # in a block of code; in an item; in one of several paragraphs
    for line in markdown.splitlines():
        if re.match(r" *(```|~~~)", line):
            fenced = not fenced
        elif not fenced and ITEM.match(line):
            if (loose or not within) and lines and lines[-1].strip():
                lines.append("")
            within, loose = True, False
        elif not fenced and line and not line.startswith(" "):
            within = False
        elif within and line:
            loose |= not lines[-1].strip()
        lines.append(f"  {line}" if within and line.startswith("  ") else line)
    return "\n".join(lines) + "\n"
