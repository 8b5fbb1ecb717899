"""Installation of walle's extras, in error messages: from where walle came, never by its name from a package index.

Nobody has published Walle there, so that the name may be anybody's, whose code would run.
"""

import importlib.metadata
import json
import urllib.parse
from pathlib import Path


def install_hint(extra: str) -> str:
    """Return the command that adds an extra, such as "pip install '/src/walle[s3]'".

    Where the wheel or checkout is not known or has gone, PATH stands in its place.
    """
    source = _source()
    if source is None:
        return f"pip install 'PATH[{extra}]', PATH being the wheel or the checkout that walle came from"
    return f"pip install '{source}[{extra}]'"


def _source() -> Path | None:
    """Return the wheel or checkout from which pip installed walle (PEP 610)."""
    try:
        text = importlib.metadata.distribution("walle").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    parts = urllib.parse.urlsplit(str(json.loads(text).get("url", "")) if text else "")
    path = Path(urllib.parse.unquote(parts.path))
    return path if parts.scheme == "file" and path.exists() else None
