"""The content of a report."""

from __future__ import annotations

import base64
import html
import io
import re

from PIL import Image


def images(page: str) -> list[Image.Image]:
    found = re.findall(r"data:image/(?:png|webp);base64,([A-Za-z0-9+/=]+)", html.unescape(page))
    return [Image.open(io.BytesIO(base64.b64decode(text))) for text in found]
