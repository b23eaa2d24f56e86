"""Figures as SVG: a file of its own, or a part of a page that takes the page's colours, light or dark."""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

from stackelberg.analysis.figure_style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
)

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
METADATA = f"{{{SVG}}}metadata"
VARIABLES = {
    INK: "ink",
    PAPER: "paper",
    GRID: "grid",
    MUTED: "muted",
    BLUE: "blue",
    SKY: "sky",
    GREEN: "green",
    YELLOW: "yellow",
    ORANGE: "orange",
    VERMILION: "vermilion",
    PURPLE: "purple",
    GREY: "grey",
}  # of the page's style sheet
BY_COLOUR = {colour.lower(): f"var(--{name})" for colour, name in VARIABLES.items()}
COLOURED = ("fill", "stroke")
FONT = re.compile(r"([\d.]+)px")
NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def inline(figure: Any, *, name: str, alt: str) -> str:
    """Part of a page: colours are the page's variables, there is no style, and text is text.

    Args:
        figure: of matplotlib.
        name: that no other figure of the page has.
        alt: what is to be seen.
    """
    root = ElementTree.fromstring(_drawn(figure))
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (METADATA, f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        _take_page_colours(element)
        _rename(element, name)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"role": "img", "aria-label": NOT_PRINTABLE.sub("\ufffd", alt), "font-family": "inherit"}
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _drawn(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # XML has no control characters, and a name may have some
    return NOT_PRINTABLE.sub("\ufffd", buffer.getvalue().decode()).encode()


def _take_page_colours(element: ElementTree.Element) -> None:
    """Styles become attributes, which a page that allows no foreign styles still obeys."""
    for part in element.attrib.pop("style", "").split(";"):
        name, _, value = (text.strip() for text in part.partition(":"))
        if name == "font":
            size = FONT.search(value)
            element.set("font-size", size[1] if size else "9")
        elif name and name not in ("font-family", "stroke-linejoin"):
            element.set(name, value)
    for name in COLOURED:
        colour = element.get(name)
        if colour is not None:
            element.set(name, BY_COLOUR.get(colour.lower(), colour))
    if element.tag == f"{{{SVG}}}text" and "fill" not in element.attrib:
        element.set("fill", BY_COLOUR[INK])


def _rename(element: ElementTree.Element, name: str) -> None:
    """Several figures of a page would have the same ids."""
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    link = element.attrib.pop(f"{{{XLINK}}}href", None)
    if link is not None:
        element.set("href", f"#{name}-{link[1:]}")
    for attribute, value in element.attrib.items():
        if value.startswith("url(#"):
            element.set(attribute, f"url(#{name}-{value[5:]}")
